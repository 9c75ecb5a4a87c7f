"""Write the reference of the Python API from its docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Final

import msgspec

import wopr
from docs.schema_text import table

# The modules with public names, each with its heading.
_MODULES: Final = {
    "wopr": "`wopr`",
    "wopr.testing": "`wopr.testing`",
    "wopr.adapters.langgraph": "`wopr.adapters.langgraph`",
    "wopr.adapters.openai_agents": "`wopr.adapters.openai_agents`",
    "wopr.adapters.pydantic_ai": "`wopr.adapters.pydantic_ai`",
}
_OPERATORS: Final = frozenset({"__call__", "__getitem__", "__rshift__", "__rrshift__"})
_SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example):$")
_ENTRY: Final = re.compile(r"^(\*{0,2}[\w.]+): (.*)$")
_LISTS: Final = {"Args": "Argument", "Attributes": "Attribute", "Raises": "Error"}


def public_objects() -> Iterator[tuple[str, str, object]]:
    """Yield module, name and object of every public class and function."""
    for module in _MODULES:
        found = import_module(module)
        names = getattr(found, "__all__", ["on_record"])
        for name in names:
            if not name.startswith("__"):
                yield module, name, getattr(found, name)


def public_methods(kind: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties of a class, including inherited ones of WOPR."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("wopr."):
            continue
        for name, member in vars(base).items():
            is_public = not name.startswith("_") or name in _OPERATORS
            is_member = inspect.isfunction(member) or isinstance(member, property)
            if is_public and is_member and name not in seen:
                seen.add(name)
                yield name, member


def python_api() -> Iterator[str]:
    """Describe every public class, function and method."""
    yield "# Python API"
    yield ""
    yield f"The public names of version {wopr.__version__}. Everything else can change without notice."
    yield ""
    module = ""
    for home, name, found in public_objects():
        if home != module:
            module = home
            yield f"## {_MODULES[home]}"
            yield ""
        yield f"### `{name}`"
        yield ""
        if inspect.isfunction(found):
            yield from _signature(name, found)
        yield from _docstring(found)
        if isinstance(found, type):
            yield from _members(found)


def _members(kind: type) -> Iterator[str]:
    if issubclass(kind, msgspec.Struct) and "Attributes:" not in (inspect.getdoc(kind) or ""):
        fields = [(f"`{field}`",) for field in kind.__struct_fields__]
        yield from table(("Attribute",), [tuple(field) for field in fields])
    for name, member in public_methods(kind):
        if isinstance(member, property):
            yield f"#### `{kind.__name__}.{name}`"
            yield ""
            yield from _docstring(member)
        else:
            yield f"#### `{kind.__name__}.{name}()`"
            yield ""
            yield from _signature(name, member)
            yield from _docstring(member)


def _signature(name: str, function: object) -> Iterator[str]:
    if not callable(function):
        return
    parameters = inspect.signature(function).parameters
    words: list[str] = []
    has_star = False
    for each in parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.VAR_POSITIONAL:
            has_star = True
        if each.kind is each.KEYWORD_ONLY and not has_star:
            has_star = True
            words.append("*")
        stars = "*" if each.kind is each.VAR_POSITIONAL else ""
        stars = "**" if each.kind is each.VAR_KEYWORD else stars
        words.append(stars + each.name + ("" if each.default is each.empty else "=..."))
    awaited = "await " if inspect.iscoroutinefunction(function) else ""
    yield "```text"
    yield f"{awaited}{name}({', '.join(words)})"
    yield "```"
    yield ""


def _docstring(found: object) -> Iterator[str]:
    section = ""
    lines: list[str] = []
    for line in (inspect.getdoc(found) or "").splitlines():
        match = _SECTION.match(line)
        if match:
            yield from _section(section, lines)
            section, lines = match[1], []
        else:
            lines.append(line)
    yield from _section(section, lines)


def _section(name: str, lines: list[str]) -> Iterator[str]:
    text = inspect.cleandoc("\n".join(["", *lines]))
    if not text:
        return
    if name == "":
        yield text
        yield ""
    elif name == "Example":
        # Not `python`, because the formatter of the repository would change the generated code.
        yield "```pycon"
        yield text
        yield "```"
        yield ""
    elif name in _LISTS:
        yield from table((_LISTS[name], "Meaning"), _entries(text))
    else:
        yield f"**{name}:** {' '.join(text.split())}"
        yield ""


def _entries(text: str) -> list[tuple[object, ...]]:
    rows: list[list[str]] = []
    for line in text.splitlines():
        match = _ENTRY.match(line)
        if match:
            rows.append([f"`{match[1]}`", match[2]])
        elif rows:
            rows[-1][1] += f" {line.strip()}"
    return [tuple(row) for row in rows]
