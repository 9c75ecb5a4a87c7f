"""The tokens of CEL expressions, from which the host finds what an expression reads and its loops.

The CEL library parses and runs expressions, but has no access to the syntax tree. An expression
that this module cannot tokenize is refused.

Only the compiled part of the library is imported: its package imports a command line and about 150
modules that a host never uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from wopr.protocol.documents import Json, is_object

if TYPE_CHECKING:
    import cel as cel
else:
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec

    _NAME = "cel.cel"
    cel = sys.modules.get(_NAME)
    if cel is None:
        _spec = PathFinder.find_spec(_NAME, find_spec("cel").submodule_search_locations)
        cel = module_from_spec(_spec)
        _spec.loader.exec_module(cel)
        # A later import of the package finds this module.
        sys.modules[_NAME] = cel

TokenKind: TypeAlias = Literal["name", "text", "number", "open", "close", "dot", "other"]

# The library's string rules: a raw text has no escapes, and only a tripled quote spans lines.
_TOKEN: Final = re.compile(
    r"""
    (?P<space> \s+ | //[^\n]* )
  | (?P<text> [bB]?[rR]  (?: \"\"\".*?\"\"\" | '''.*?''' | "[^"\n\r]*" | '[^'\n\r]*' )
            | [bB]?      (?: \"\"\"(?:[^\\]|\\.)*?\"\"\" | '''(?:[^\\]|\\.)*?'''
                           | "(?:[^"\\\n\r]|\\.)*" | '(?:[^'\\\n\r]|\\.)*' ) )
  | (?P<number> 0[xX][0-9a-fA-F]+[uU]? | \d+(?:\.\d+)?(?:[eE][+-]?\d+)?[uU]? )
  | (?P<other> in\b | [^\w\s"'`()\[\]{}.] )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<open> [(\[{] )
  | (?P<close> [)\]}] )
  | (?P<dot> \. )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
MACROS: Final = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


class ExpressionFault(ValueError):
    """An expression that cannot be parsed, is not allowed, or has no value."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an expression. `value` is the value of a text literal."""

    kind: TokenKind
    source: str
    value: str | bytes = ""


def tokenize(source: str) -> tuple[Token, ...]:
    """Split a compiled expression into its tokens."""
    tokens: list[Token] = []
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise ExpressionFault(f"cannot be read at character {position + 1}")
        position = match.end()
        if match.lastgroup != "space":
            tokens.append(_token(match))
    _check_brackets(tokens)
    return tuple(tokens)


def names_read(tokens: tuple[Token, ...]) -> dict[str, set[str] | None]:
    """Return what an expression may read: each root name with its keys, or None for all keys."""
    found: dict[str, set[str] | None] = {}
    for index, token in enumerate(tokens):
        if token.kind != "name" or (index and tokens[index - 1].kind == "dot"):
            continue
        step = step_at(tokens, index + 1)
        keys = found.setdefault(token.source, set())
        if step is None:
            found[token.source] = None
        elif keys is not None:
            keys.add(step[0])
    return found


def macro_variables(tokens: tuple[Token, ...]) -> set[str]:
    """Return the variables that macros define, such as `x` in `items.map(x, x + 1)`."""
    return {
        name.source
        for dot, macro, opener, name in zip(
            tokens, tokens[1:], tokens[2:], tokens[3:], strict=False
        )
        if dot.kind == "dot"
        and macro.source in MACROS
        and opener.source == "("
        and name.kind == "name"
    }


def step_at(tokens: tuple[Token, ...], index: int) -> tuple[str, int] | None:
    """Return the key of `.key` or `["key"]` at an index, and the index after it; else None."""
    after = list(tokens[index : index + 3])
    kinds = [token.kind for token in after]
    if kinds[:2] == ["dot", "name"] and after[-1].source != "(":
        return after[1].source, index + 2
    if kinds == ["open", "text", "close"] and after[0].source == "[":
        key = after[1].value
        return (key, index + 3) if isinstance(key, str) else None
    return None


def narrow_scope(
    scope: Mapping[str, Json], reads: Mapping[str, set[str] | None]
) -> dict[str, Json]:
    """Return the part of a scope that an expression may read.

    The library copies the whole scope.
    """
    kept: dict[str, Json] = {}
    for name, keys in reads.items():
        if name not in scope:
            continue
        value = scope[name]
        if keys is not None and is_object(value):
            kept[name] = {key: value[key] for key in keys if key in value}
        else:
            kept[name] = value
    return kept


def _token(match: re.Match[str]) -> Token:
    source = match.group()
    for kind in ("name", "text", "number", "open", "close", "dot"):
        if match.lastgroup == kind:
            return Token(kind, source, _literal(source) if kind == "text" else "")
    return Token("other", source)


def _literal(source: str) -> str | bytes:
    # The library defines the meaning of escapes.
    value: str | bytes = cel.compile(source).execute({})
    return value


def _check_brackets(tokens: list[Token]) -> None:
    expected: list[str] = []
    for token in tokens:
        if token.kind == "open":
            expected.append(_CLOSING[token.source])
        elif token.kind == "close" and (not expected or expected.pop() != token.source):
            raise ExpressionFault("cannot be read: a bracket does not match")
    if expected:
        raise ExpressionFault("cannot be read: a bracket is not closed")
