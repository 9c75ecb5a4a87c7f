"""The words of an expression: enough of CEL's grammar to see what it reads and how it loops.

The library parses and runs expressions; it shows no syntax tree. Whatever this module cannot read
is refused, so nothing that it overlooked can run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from wopr.engine.cel_library import cel
from wopr.protocol.documents import Json
from wopr.protocol.documents import is_list as is_list
from wopr.protocol.documents import is_object as is_object

Kind: TypeAlias = Literal["name", "text", "number", "open", "close", "dot", "other"]

# The library's own string rules: a raw text has no escapes, only a tripled quote spans lines.
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
    """An expression that cannot be read, may not run, or has no value here."""


@dataclass(frozen=True, slots=True)
class Token:
    """One word of an expression; `value` is what a text literal stands for."""

    kind: Kind
    source: str
    value: str | bytes = ""


def scan(source: str) -> tuple[Token, ...]:
    """Split an expression that the library has compiled into its words."""
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


def references(tokens: tuple[Token, ...]) -> dict[str, set[str] | None]:
    """Name what an expression may read: each first name with its keys, `None` for all of them."""
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


def bound_names(tokens: tuple[Token, ...]) -> set[str]:
    """Name the variables that macros define, such as `x` in `items.map(x, x + 1)`."""
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
    """Read one `.key` or `["key"]` and say where it ends; `None` when there is no such step."""
    after = list(tokens[index : index + 3])
    kinds = [token.kind for token in after]
    if kinds[:2] == ["dot", "name"] and after[-1].source != "(":
        return after[1].source, index + 2
    if kinds == ["open", "text", "close"] and after[0].source == "[":
        key = after[1].value
        return (key, index + 3) if isinstance(key, str) else None
    return None


def narrowed(scope: Mapping[str, Json], reads: Mapping[str, set[str] | None]) -> dict[str, Json]:
    """Keep of a scope what an expression may read: the library copies all that it is given."""
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
    # The library itself says what an escape means.
    value: str | bytes = cel.compile(source).execute({})
    return value


def _check_brackets(tokens: list[Token]) -> None:
    awaited: list[str] = []
    for token in tokens:
        if token.kind == "open":
            awaited.append(_CLOSING[token.source])
        elif token.kind == "close" and (not awaited or awaited.pop() != token.source):
            raise ExpressionFault("cannot be read: a bracket does not match")
    if awaited:
        raise ExpressionFault("cannot be read: a bracket is not closed")
