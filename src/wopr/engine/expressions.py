"""Expressions and edge conditions: CEL on the Rust library, bounded, plain JSON in and out.

Expressions see the scope they are given and nothing else: no Python object, attribute or import.
Whole numbers and fractions compare as numbers; arithmetic follows CEL and mixes them only through
`int(x)` or `double(x)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, TypeVar, cast

import cel

from wopr.engine.expression_cost import check_cost, check_pattern, check_scope, is_plain
from wopr.engine.expression_tokens import (
    ExpressionFault,
    Token,
    is_list,
    is_object,
    narrowed,
    references,
    scan,
)
from wopr.protocol.documents import UNSET, Json, Unset
from wopr.protocol.workflow import EdgeCondition

__all__ = ["ExpressionFault", "compile_check", "condition_faults", "evaluate", "holds", "lookup"]

MAX_SOURCE: Final = 4096
_MAX_MESSAGE: Final = 200
_INDEX: Final = re.compile(r"[0-9]{1,9}")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _Compiled:
    program: cel.Program
    tokens: tuple[Token, ...]
    is_plain: bool
    reads: Mapping[str, set[str] | None]


def compile_check(source: str) -> str | None:
    """Say in one line why an expression cannot be registered, or `None` when it can."""
    try:
        check_cost(_compiled(source).tokens, {})
    except ExpressionFault as fault:
        return str(fault)
    return None


def evaluate(source: str, scope: Mapping[str, Json]) -> Json:
    """Give an expression's value as plain JSON. Raises `ExpressionFault` when it has none."""
    compiled = _compiled(source)
    context = narrowed(scope, compiled.reads)
    check_scope(context)
    if not compiled.is_plain:
        check_cost(compiled.tokens, context)
    return _guarded(lambda: _plain(compiled.program.execute(context)))


def holds(condition: EdgeCondition, scope: Mapping[str, Json]) -> bool:
    """Tell whether an edge's condition is met.

    A path that leads nowhere is absent: it differs from everything and contains nothing.
    Raises `ExpressionFault` when an expression has no value or not a boolean one.
    """
    if condition.type == "expression":
        return _expression_holds(condition, scope)
    left = UNSET if isinstance(condition.left, Unset) else _resolve(condition.left, scope)
    match condition.type:
        case "equals":
            return _same(left, condition.right)
        case "notEquals":
            return not _same(left, condition.right)
        case "contains":
            return _contains(left, condition.right)
        case "regex":
            return _matches(left, condition.right)


def condition_faults(condition: EdgeCondition) -> list[str]:
    """Say everything that keeps a condition from being registered."""
    if condition.type == "expression":
        if isinstance(condition.expression, Unset):
            return ["an expression condition needs expression"]
        fault = compile_check(condition.expression)
        return [] if fault is None else [f"expression {fault}"]
    return list(_comparison_faults(condition))


def lookup(value: Json, path: str) -> Json:
    """Follow a dotted path into a value, list items by number; `UNSET` where it leads nowhere."""
    for segment in path.split("."):
        value = _step(value, segment)
    return value


@lru_cache(maxsize=1024)
def _compiled(source: str) -> _Compiled:
    if len(source) > MAX_SOURCE:
        raise ExpressionFault(f"is longer than {MAX_SOURCE} characters")
    program = _guarded(lambda: cel.compile(source))
    tokens = scan(source)
    return _Compiled(program, tokens, is_plain(tokens), references(tokens))


def _guarded(call: Callable[[], _Answer]) -> _Answer:
    """Call the library; whatever it raises becomes an `ExpressionFault`."""
    try:
        return call()
    except ExpressionFault:
        raise
    except KeyError as missing:
        raise ExpressionFault(f"finds no key {missing}") from missing
    except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise ExpressionFault(_reason(error)) from error
    except BaseException as panic:
        # A panic of the library derives from BaseException and must not end the process.
        if type(panic).__name__ != "PanicException":
            raise
        raise ExpressionFault("made the expression library fail") from panic


def _reason(error: Exception) -> str:
    text = str(error)
    undefined = re.match(r"Undefined variable or function: '([^']*)'", text)
    if undefined is not None:
        return f"names {undefined[1]!r}, which is not defined here"
    syntax = re.search(r"ERROR: <input>:(\d+):(\d+): (.*)", text)
    if syntax is not None:
        line, column, what = syntax.groups()
        text = f"{what.split(' expecting {')[0]} at line {line}, column {column}"
    else:
        text = text.split(". ")[0]
    return f"fails: {' '.join(text.split())}"[:_MAX_MESSAGE]


def _plain(value: object) -> Json:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return _finite(value)
        case list():
            return [_plain(item) for item in cast("list[object]", value)]
        case dict():
            # The library gives keys in a random order; a replay must give the same bytes.
            entries = {_key(key): item for key, item in cast("dict[object, object]", value).items()}
            return {key: _plain(entries[key]) for key in sorted(entries)}
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return f"{value.total_seconds():g}s"
        case _:
            raise ExpressionFault(f"gives {type(value).__name__}, which JSON cannot carry")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ExpressionFault("gives a number that is not finite")
    return value


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ExpressionFault("gives an object with a key that is not a text")
    return key


def _expression_holds(condition: EdgeCondition, scope: Mapping[str, Json]) -> bool:
    if isinstance(condition.expression, Unset):
        raise ExpressionFault("an expression condition needs expression")
    answer = evaluate(condition.expression, scope)
    if not isinstance(answer, bool):
        raise ExpressionFault("a condition must give true or false")
    return answer


def _resolve(path: str, scope: Mapping[str, Json]) -> Json:
    first, _, _ = path.partition(".")
    return lookup(scope if first in scope else scope.get("outputs", UNSET), path)


def _step(value: Json, segment: str) -> Json:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Json]", value).get(segment, UNSET)
    if is_list(value) and _INDEX.fullmatch(segment) and int(segment) < len(value):
        return value[int(segment)]
    return UNSET


def _same(left: Json, right: Json) -> bool:
    """Compare as JSON does: 1 equals 1.0, and true is not 1."""
    pairs = [(left, right)]
    while pairs:
        ours, theirs = pairs.pop()
        if is_list(ours) and is_list(theirs) and len(ours) == len(theirs):
            pairs.extend(zip(ours, theirs, strict=True))
        elif is_object(ours) and is_object(theirs) and ours.keys() == theirs.keys():
            pairs.extend((ours[key], theirs[key]) for key in ours)
        elif not _same_leaf(ours, theirs):
            return False
    return True


def _same_leaf(left: Json, right: Json) -> bool:
    if isinstance(left, Unset | list | dict):
        return False
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _contains(left: Json, right: Json) -> bool:
    if is_list(left):
        return any(_same(item, right) for item in left)
    if isinstance(left, str | dict) and isinstance(right, str):
        return right in left
    return False


def _matches(left: Json, right: Json) -> bool:
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    check_pattern(right, left)
    program = _compiled("text.matches(pattern)").program
    # The library's engine takes time linear in the text, whatever the pattern.
    return bool(_guarded(lambda: program.execute({"text": left, "pattern": right})))


def _comparison_faults(condition: EdgeCondition) -> Iterator[str]:
    if isinstance(condition.left, Unset) or not condition.left:
        yield f"a condition of type {condition.type} needs left"
    if isinstance(condition.right, Unset):
        yield f"a condition of type {condition.type} needs right"
    elif condition.type == "regex":
        yield from _pattern_faults(condition.right)


def _pattern_faults(pattern: Json) -> Iterator[str]:
    if not isinstance(pattern, str):
        yield "right must be a regular expression"
        return
    try:
        _matches("", pattern)
    except ExpressionFault as fault:
        yield f"right {fault}"
