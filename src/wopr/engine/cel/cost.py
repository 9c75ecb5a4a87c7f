"""The maximum cost of an expression, computed before it runs.

The library cannot be stopped while it runs, holds the interpreter, and makes deep copies of values:
each field access copies the field, each iteration of `map` and `filter` copies the result so far,
and `matches` compiles its pattern again. Nested macros therefore take minutes on a thousand items.
This module walks the expression over the data that it would read, counts every copy, and refuses a
cost above `BUDGET`. One unit is roughly the copy of one JSON value, 30-100 ns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from wopr.engine.cel.tokens import MACROS, ExpressionFault, Token, step_at
from wopr.protocol.documents import Json, is_list, is_object
from wopr.protocol.json_schema.size import pattern_states
from wopr.protocol.offloading import compute_once

BUDGET: Final = 10_000_000
MAX_WEIGHT: Final = 500_000
MAX_DEPTH: Final = 200
# The largest result, in JSON values or texts of 256 characters: 64 MiB.
MAX_RESULT: Final = 262_144

# Costs: one iteration of a macro, measuring one value, and the text length that counts as one
# value.
_ITERATION: Final = 10
_MEASURED: Final = 20
_TEXT: Final = 256
# The cost of compiling one state of a pattern, and the bytes that a state reads for one unit.
_STATE: Final = 500
_STATE_BYTES: Final = 25
# The cost of comparing one item of a list.
_ITEM: Final = 5
_NUMBERS: Final = frozenset({bool, int, float, type(None)})

_REPEATING: Final = MACROS | {"matches", "+"}
_SHORT: Final = 64
_TOO_MUCH: Final = "is refused: it could take too long on this much data"
_TOO_LARGE: Final = "is refused: it could make a value of more than 64 MiB"
_VERBOSE: Final = re.compile(r"\(\?[a-zA-Z]*x", re.ASCII)


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a value: its items (`length`) and all values in it (`weight`).

    `widest` and `heaviest` are the largest length and weight of its parts.
    """

    length: int = 0
    weight: int = 1
    widest: int = 0
    heaviest: int = 0
    is_object: bool = False

    def combine(self, other: Extent) -> Extent:
        """Return the maximum extent of the result of an operator on two values."""
        return Extent(
            self.length + other.length,
            self.weight + other.weight,
            max(self.widest, other.widest),
            max(self.heaviest, other.heaviest),
            self.is_object or other.is_object,
        )

    def part(self) -> Extent:
        """Return the maximum extent of any value inside this one."""
        length = max(self.length, self.widest)
        return replace(self, length=length, heaviest=self.weight, is_object=False)

    def item(self) -> Extent:
        """Return the maximum extent of one item of this list or one key of this object."""
        return Extent(self.widest, max(self.heaviest, 1), self.widest, self.heaviest)


def extent_of(value: Json) -> Extent:
    """Measure a JSON value.

    Raises `ExpressionFault` if it is nested too deeply or has too many values.
    """
    items = _items(value)
    if items is None:
        return Extent(weight=_leaf(value))
    _check_length(items)
    measured = [_weigh(item) for item in items if type(item) not in _NUMBERS]
    numbers = len(items) - len(measured)
    return Extent(
        length=len(items),
        weight=1 + len(items) + numbers + sum(weight for weight, _ in measured),
        widest=max((widest for _, widest in measured), default=0),
        heaviest=max((weight for weight, _ in measured), default=min(numbers, 1)),
        is_object=is_object(value),
    )


def weight_of(value: Json) -> int:
    """Count the values in a JSON value. Raises `ExpressionFault` like `extent_of`."""
    return _cached_extent(value).weight if isinstance(value, list | dict) else _leaf(value)


def _cached_extent(value: Json) -> Extent:
    """Measure a value once for all expressions of an operation."""
    extent = compute_once(_extent_or_fault, value)
    if isinstance(extent, ExpressionFault):
        raise ExpressionFault(str(extent))
    return extent


def _extent_or_fault(value: Json) -> Extent | ExpressionFault:
    try:
        return extent_of(value)
    except ExpressionFault as fault:
        return fault


def _check_length(items: list[Json]) -> None:
    # Each item counts twice: as a slot and as a value.
    if 2 * len(items) > MAX_WEIGHT:
        raise ExpressionFault(_TOO_MUCH)


def is_plain(tokens: tuple[Token, ...]) -> bool:
    """Return whether an expression is short and has no loop, so that its data bounds its cost."""
    return len(tokens) <= _SHORT and not any(token.source in _REPEATING for token in tokens)


def check_scope(scope: Mapping[str, Json]) -> int:
    """Return the number of values in a scope.

    Raises `ExpressionFault` for data that takes too long to convert.
    """
    weight = 0
    for value in scope.values():
        if is_object(value):
            # The object may exist for one expression only; its members belong to the run.
            _check_length([*value])
            weight += 1 + 2 * len(value)
            weight += sum(_leaf(key) + weight_of(member) for key, member in value.items())
        else:
            weight += weight_of(value)
    if weight > MAX_WEIGHT:
        raise ExpressionFault(_TOO_MUCH)
    return weight


def check_cost(tokens: tuple[Token, ...], scope: Mapping[str, Json]) -> int:
    """Return the maximum cost of an expression.

    Raises `ExpressionFault` if it could take too long on this data.
    """
    counter = _CostCounter(tokens, scope)
    result = counter.count_group({})
    if counter.work > BUDGET:
        raise ExpressionFault(_TOO_MUCH)
    if result.weight > MAX_RESULT:
        raise ExpressionFault(_TOO_LARGE)
    return counter.work


def _states(pattern: str) -> int:
    if _VERBOSE.search(pattern):
        raise ExpressionFault("is refused: a pattern may not use the flag x")
    return pattern_states(pattern)


def check_pattern(pattern: str, text: str) -> int:
    """Return the maximum cost of a pattern on a text.

    Raises `ExpressionFault` if it could take too long.
    """
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    cost = _states(pattern) * (_STATE + size // _STATE_BYTES)
    if cost > BUDGET:
        raise ExpressionFault("is refused: the pattern could take too long on this text")
    return cost


def search_cost(container: Json, item: Json) -> int:
    """Return the maximum cost of searching a value in a list or a text in another text."""
    if isinstance(container, str):
        return len(container) // _STATE_BYTES
    if not is_list(container):
        return 1
    if isinstance(item, list | dict):
        return weight_of(container) * _ITEM
    return len(container) * _ITEM


def _items(value: Json) -> list[Json] | None:
    if is_object(value):
        return [*value.keys(), *value.values()]
    return value if is_list(value) else None


def _leaf(value: Json) -> int:
    return 1 + len(value) // _TEXT if isinstance(value, str) else 1


def _weigh(value: Json) -> tuple[int, int]:
    if not isinstance(value, list | dict):
        return _leaf(value), 0
    weight = widest = 0
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Json] = []
        for each in level:
            items = _items(each)
            if items is None:
                weight += _leaf(each)
                continue
            _check_length(items)
            others = [item for item in items if type(item) not in _NUMBERS]
            weight += 1 + len(items) + len(items) - len(others)
            widest = max(widest, len(items))
            inner.extend(others)
            if weight > MAX_WEIGHT:
                raise ExpressionFault(_TOO_MUCH)
        if not inner:
            return weight, widest
        level = inner
    raise ExpressionFault(f"is refused: it reads a value nested more than {MAX_DEPTH} deep")


class _CostCounter:
    """Adds up the maximum cost in one pass over the tokens of an expression."""

    def __init__(self, tokens: tuple[Token, ...], scope: Mapping[str, Json]) -> None:
        self.work = 0
        self._tokens = tokens
        self._scope = scope
        self._at = 0
        self._measures: dict[int, Extent] = {}
        self._measured = 0

    def count_group(self, bound: Mapping[str, Extent]) -> Extent:
        """Add the cost of all operands up to the closing bracket.

        For `+`, the operands before it are counted again.
        """
        total = Extent(weight=0)
        joined = 0
        while self._at < len(self._tokens) and self._tokens[self._at].kind != "close":
            if self._tokens[self._at].kind == "other" and not self._next_is("+"):
                joined = 0
            operand = self._operand(bound)
            total = total.combine(operand)
            joined += operand.weight
            self.work += joined + 1
        self._at += 1
        return total

    def _operand(self, bound: Mapping[str, Extent]) -> Extent:
        token = self._next()
        if token.kind == "other":
            return Extent(weight=0)
        if token.kind == "open":
            extent = self._bracket(token, bound)
        elif token.kind == "name" and not self._next_is("("):
            extent = self._path(token.source, bound)
        else:
            extent = Extent(weight=1 + len(token.value) // _TEXT)
        while self._next_is(".", "(", "[", "{"):
            extent = self._postfix(extent, bound)
        return extent

    def _bracket(self, opener: Token, bound: Mapping[str, Extent]) -> Extent:
        start = self._at
        inside = self.count_group(bound)
        if opener.source == "(":
            return inside
        # A list or object literal has at most one item per token.
        widest = max(inside.length, inside.widest)
        return Extent(
            self._at - start, inside.weight + 1, widest, inside.weight, opener.source == "{"
        )

    def _path(self, name: str, bound: Mapping[str, Extent]) -> Extent:
        if name in bound:
            return bound[name]
        value: Json = self._scope.get(name)
        while (step := step_at(self._tokens, self._at)) is not None:
            key, self._at = step
            value = value.get(key) if is_object(value) else None
        return self._measure(value)

    def _measure(self, value: Json) -> Extent:
        # The scope keeps every value alive, so an identity belongs to one value.
        extent = self._measures.get(id(value))
        if extent is None:
            extent = self._measures[id(value)] = _cached_extent(value)
            self._measured += extent.weight * _MEASURED
            if self._measured > BUDGET:
                raise ExpressionFault(_TOO_MUCH)
        return extent

    def _postfix(self, extent: Extent, bound: Mapping[str, Extent]) -> Extent:
        opener = self._next()
        if opener.kind == "open":
            return extent.combine(self.count_group(bound)).part()
        name = self._next()
        if not self._next_is("("):
            return extent.part()
        self._next()
        if name.source in MACROS and self._tokens[self._at].kind == "name":
            return self._macro(name.source, extent, bound)
        if name.source == "matches":
            self._pattern(extent)
        return extent.combine(self.count_group(bound))

    def _macro(self, macro: str, over: Extent, bound: Mapping[str, Extent]) -> Extent:
        if macro in ("map", "filter") and over.is_object:
            # The library iterates an object in random order, and a replay must give the same bytes.
            raise ExpressionFault(
                f"is refused: {macro} needs a list, because an object has no order"
            )
        before, self.work = self.work, 0
        variable = self._next().source
        body = self.count_group({**bound, variable: over.item()})
        result = _macro_result(macro, over, body)
        copied = result.weight // 2
        self.work = before + over.length * (self.work + _ITERATION + copied)
        return result

    def _pattern(self, text: Extent) -> None:
        pattern, end = self._tokens[self._at], self._tokens[self._at + 1]
        if not isinstance(pattern.value, str) or pattern.kind != "text" or end.kind != "close":
            raise ExpressionFault("is refused: the pattern of matches() must be a text literal")
        read = text.weight * _TEXT // _STATE_BYTES
        self.work += _states(pattern.value) * (_STATE + read)

    def _next_is(self, *sources: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].source in sources

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]


def _macro_result(macro: str, over: Extent, body: Extent) -> Extent:
    if macro == "map":
        return Extent(
            length=over.length,
            weight=1 + over.length * body.weight,
            widest=max(body.length, body.widest),
            heaviest=body.weight,
        )
    return over if macro == "filter" else Extent()
