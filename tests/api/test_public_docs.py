"""The docstrings of the public API are complete, and their examples run."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Sequence

import msgspec
import pytest
from _pytest.mark import ParameterSet

from docs.python_api import public_methods, public_objects
from wopr import Run

# Classes that the API returns. Users do not call their constructors.
RETURNED = frozenset(
    {"Node", "Run", "Host", "RunView", "NodeContext", "ToolContext", "ModelRequest"}
)
# Documents of the protocol. Their docstrings are descriptions in the published JSON Schemas.
DOCUMENTS = frozenset({"InboxItem", "NodeSettings", "RetryPolicy", "WorkflowSettings"})
OBJECTS = [(f"{module}.{name}", found) for module, name, found in public_objects()]
METHODS = [
    (f"{name}.{method}", member)
    for name, found in OBJECTS
    if isinstance(found, type)
    for method, member in public_methods(found)
]
FUNCTIONS = [
    *((name, found) for name, found in OBJECTS if inspect.isfunction(found)),
    *((name, member) for name, member in METHODS if inspect.isfunction(member)),
]
CLASSES = [(name, found) for name, found in OBJECTS if isinstance(found, type)]


def named(found: Sequence[tuple[str, object]]) -> list[ParameterSet]:
    return [pytest.param(name, each, id=name) for name, each in found]


def documented(found: object, section: str = "Args") -> set[str]:
    text = inspect.getdoc(found) or ""
    match = re.search(rf"^{section}:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    return set(re.findall(r"^    \*{0,2}(\w+):", match[1], re.MULTILINE)) if match else set()


def parameters(function: object) -> set[str]:
    assert callable(function)
    return set(inspect.signature(function).parameters) - {"self"}


@pytest.mark.parametrize(("name", "found"), named([*OBJECTS, *METHODS]))
def test_every_public_name_has_a_docstring(name: str, found: object) -> None:
    assert inspect.getdoc(found), name


@pytest.mark.parametrize(("name", "function"), named(FUNCTIONS))
def test_a_docstring_describes_every_argument_and_the_result(name: str, function: object) -> None:
    text = inspect.getdoc(function) or ""
    returned = inspect.signature(function).return_annotation  # type: ignore[arg-type]  # callable

    assert documented(function) == parameters(function), name
    assert returned in ("None", None) or re.search(r"^(Returns|Yields):$", text, re.MULTILINE), name


@pytest.mark.parametrize(("name", "kind"), named([*CLASSES]))
def test_the_docstring_of_a_class_describes_the_arguments_of_its_constructor(
    name: str, kind: type
) -> None:
    is_error = issubclass(kind, Exception) and not documented(kind)
    is_struct = issubclass(kind, msgspec.Struct)
    if kind.__name__ in RETURNED or is_error or is_struct:
        return

    assert documented(kind) == parameters(vars(kind)["__init__"]), name


@pytest.mark.parametrize(("name", "found"), named(OBJECTS))
def test_every_class_and_function_has_an_example(name: str, found: object) -> None:
    if name.rpartition(".")[2] in DOCUMENTS:
        return

    assert re.search(r"^Example:$", inspect.getdoc(found) or "", re.MULTILINE), name


def test_the_examples_of_the_docstrings_run() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    count = 0
    for name, found in [*OBJECTS, *METHODS]:
        text = inspect.getdoc(found) or ""
        if ">>>" not in text:
            continue
        globs = {"__name__": "examples", "Run": Run}
        for test in finder.find(found, name, globs=globs):
            runner.run(test)
            count += 1

    assert count >= 20
    assert runner.summarize(verbose=False).failed == 0
