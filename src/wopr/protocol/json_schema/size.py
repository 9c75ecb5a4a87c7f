"""The maximum cost of a user's JSON Schema, computed without compiling it.

A short schema can describe a very large one: each of n definitions that refers twice to the next
doubles the work, up to 2^n. The expanded size is the number of subschemas after every `$ref` is
replaced by its target. It is computed in linear time: each subschema is measured once. A reference
back to a schema that is being measured counts as one subschema and marks the schema as recursive.

The library has its own rules for references. A schema with references counts as bounded only if the
targets are certain to be the same: plain pointers, in a document that is one resource.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import msgspec

from wopr.protocol.documents import Json, JsonObject, is_list, is_object

MAX_DEPTH: Final = 100
# States of all patterns of a schema: the length of a pattern times its largest counted repetition,
# or the product of all if some are inside others. Classes of Unicode characters count as many.
MAX_STATES: Final = 20_000
# The limit of states of all schemas of a definition.
MAX_DEFINITION_STATES: Final = 100_000
# Limits of a small document. It is checked within about 10 ms, and its patterns are compiled within
# a millisecond. A long text counts as several values.
SMALL_WEIGHT: Final = 1000
SMALL_STATES: Final = 5000
# Counts of subschemas and states end here.
_MAX_COUNTED: Final = 10**9

_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
# Keywords with data, with subschemas by name (`_BY_NAME`), and with one subschema or a list of them
# (`_SUBSCHEMAS`). It is not known what a validator does with other lists and objects.
_DATA: Final = frozenset(
    {
        *("const", "default", "examples", "required", "type", "$vocabulary"),
        # An annotation of OpenAPI.
        "discriminator",
    }
)
# Keywords with data that have a cost for each member.
_COUNTED: Final = frozenset({"enum", "dependentRequired"})
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_SUBSCHEMAS: Final = frozenset(
    {
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"),
        *("additionalProperties", "propertyNames", "unevaluatedProperties", "contentSchema"),
    }
)
# Keywords that make a subschema apply more than once to the same value.
_REPEATED: Final = frozenset(
    {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"}
)
_COUNT: Final = re.compile(r"\{([\d,\s]*)\}", re.ASCII)
# A counted repetition of a group or of another repetition, or a group that may change the syntax.
_REPEATED_PART: Final = re.compile(r"[)}][*+?\s]*\{|\(\?(?!:)")
# Patterns without these are matched in linear time. Others may need backtracking: groups with `(?`
# other than `(?:`, possessive quantifiers, and escapes such as `\1`, `\k` and `\G`.
_BACKTRACKING: Final = re.compile(r"\(\?(?!:)|[*+?}]\s*\+|\\(?![nrtfvdDwWsSpPxubB])[A-Za-z0-9]")
# The cost of `multipleOf` with a fraction, in subschemas.
_FRACTION_COST: Final = 1500
# Classes of characters compile to many states. A class by a Unicode property takes some 140 µs and
# 54 KiB, a thousand times as much as a letter.
_CLASSES: Final = re.compile(r"\[\^|\.|\\[wWsSdD]")
_PROPERTY: Final = re.compile(r"\\[pP]")
_PROPERTY_STATES: Final = 1000
# A pointer of names and indices, without escapes, signs and leading zeros.
_PLAIN_POINTER: Final = re.compile(r"#(?:/(?:0|[1-9]\d{0,8}|[A-Za-z_$.-][\w$.-]*))*", re.ASCII)
_INDEX: Final = re.compile(r"\+?\d{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLimits:
    """The limits of a user's schema: its JSON, and its subschemas with references expanded."""

    max_bytes: int = 256 * 1024
    max_subschemas: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSize:
    """The maximum cost of a schema.

    With `is_bounded`, applying it takes at most `subschemas` and `fractions` steps for each value
    inside the checked value.
    """

    subschemas: int
    depth: int
    states: int
    patterns: int = 0
    # Steps of arithmetic with fractions.
    fractions: int = 0
    is_bounded: bool
    # A reference that does not begin with `#` or that has no target.
    unresolved: str | None = None


def pattern_states(pattern: str) -> int:
    """Return the maximum number of states of a compiled pattern."""
    return min((len(pattern) + 1) * _repetitions(pattern), _MAX_COUNTED)


def _repetitions(pattern: str) -> int:
    """Return the maximum number of counted repetitions. Nested repetitions multiply."""
    counts = [_largest_count(counted) for counted in _COUNT.findall(pattern)]
    if _REPEATED_PART.search(pattern) is None:
        return max(counts, default=1)
    product = 1
    for count in counts:
        product = min(product * count, _MAX_COUNTED)
    return product


def _largest_count(counted: str) -> int:
    # No library accepts more digits, and they would slow the arithmetic.
    return max((int(digits[:9]) for digits in re.findall(r"\d+", counted)), default=1) or 1


def measure(schema: JsonObject) -> SchemaSize:
    """Measure a schema. A schema that is nested too deeply has a depth above `MAX_DEPTH`."""
    walk = _SchemaWalk(schema)
    try:
        subschemas, depth = walk.measure_part(schema, 1)
    except _TooDeep:
        return SchemaSize(subschemas=0, depth=MAX_DEPTH + 1, states=0, is_bounded=False)
    return SchemaSize(
        subschemas=subschemas,
        depth=depth,
        states=walk.states,
        patterns=walk.patterns,
        fractions=walk.fractions,
        is_bounded=walk.is_bounded,
        unresolved=walk.unresolved,
    )


def size_faults(schema: JsonObject, limits: SchemaLimits) -> Iterator[str]:
    """Yield the limits that a schema exceeds, with its values."""
    size = len(msgspec.json.encode(schema))
    if size > limits.max_bytes:
        yield f"the schema has {size} bytes, and at most {limits.max_bytes} are allowed"
        return
    found = measure(schema)
    yield from fixed_faults(found)
    if found.unresolved is not None:
        yield (
            f"the reference {found.unresolved[:200]!r} names no part of the schema: write it as "
            "'#/$defs/name'; references to other documents are not followed"
        )
    if found.subschemas > limits.max_subschemas:
        yield (
            f"the schema expands to {count_text(found.subschemas)} subschemas through its "
            f"references, and at most {limits.max_subschemas} are allowed"
        )


def fixed_faults(size: SchemaSize) -> Iterator[str]:
    """Yield the fixed limits that a schema exceeds."""
    if size.depth > MAX_DEPTH:
        yield f"the schema is nested more than {MAX_DEPTH} deep, references included"
    if size.states > MAX_STATES:
        yield (
            f"the patterns of the schema have {count_text(size.states)} states (their length times "
            f"their counted repetitions, {_PROPERTY_STATES} for a class such as \\p{{L}}), and at "
            f"most {MAX_STATES} are allowed; use + and maxLength instead of a counted repetition"
        )


def count_text(number: int) -> str:
    """Return a number of subschemas or states as text, or a bound if it is very large."""
    return str(number) if number < _MAX_COUNTED else "more than 10^9"


class _TooDeep(Exception):
    """The schema is nested too deeply."""


@dataclass(slots=True)
class _SchemaWalk:
    """Measures a schema in one pass. Each subschema is measured once, by its identity."""

    root: JsonObject
    states: int = 0
    patterns: int = 0
    fractions: int = 0
    is_bounded: bool = True
    unresolved: str | None = None
    _sizes: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    _in_progress: set[int] = field(default_factory=set[int])
    _anchors: dict[str, Json] | None = None
    _has_several_resources: bool | None = None

    def measure_part(self, part: Json, depth: int) -> tuple[int, int]:
        """Return the number of subschemas in a subschema, including itself, and their depth."""
        if depth > MAX_DEPTH:
            raise _TooDeep
        if not is_object(part) and not is_list(part):
            return 1, 0
        known = self._sizes.get(id(part))
        if known is not None:
            if depth + known[1] > MAX_DEPTH:
                raise _TooDeep
            return known
        if id(part) in self._in_progress:
            self.is_bounded = False
            return 1, 0
        self._in_progress.add(id(part))
        count, height = 1, 0
        for inner in self._inside(part):
            size, below = self.measure_part(inner, depth + 1)
            count, height = count + size, max(height, below + 1)
        self._in_progress.discard(id(part))
        self._sizes[id(part)] = count, height
        return count, height

    def _inside(self, part: JsonObject | list[Json]) -> Iterator[Json]:
        """Yield the subschemas that apply to the same value or to a part of it."""
        if not is_object(part):
            yield from part
            return
        for keyword, value in part.items():
            yield from self._of_keyword(keyword, value)

    def _of_keyword(self, keyword: str, value: Json) -> Iterator[Json]:
        if keyword in _REPEATED:
            self.is_bounded = False
        if keyword in _REFERENCES:
            yield self._target(value)
        elif keyword == "pattern":
            self._add_pattern(value)
        elif keyword == "multipleOf" and isinstance(value, float):
            self.fractions += _FRACTION_COST
        elif keyword in _COUNTED:
            yield from [None] * len(value) if is_object(value) or is_list(value) else ()
        elif keyword in _BY_NAME and is_object(value):
            for name, inner in value.items():
                if keyword == "patternProperties":
                    self._add_pattern(name)
                yield inner
        elif (
            keyword not in _DATA and keyword not in _DEFINITIONS and isinstance(value, dict | list)
        ):
            self.is_bounded = self.is_bounded and keyword in _SUBSCHEMAS
            yield value

    def _add_pattern(self, pattern: Json) -> None:
        if isinstance(pattern, str):
            self.patterns += 1
            factor = 4 if _CLASSES.search(pattern) else 1
            properties = _PROPERTY_STATES * len(_PROPERTY.findall(pattern))
            states = pattern_states(pattern) * factor + properties * _repetitions(pattern)
            self.states = min(self.states + states, _MAX_COUNTED)
            if _BACKTRACKING.search(pattern) is not None:
                self.is_bounded = False

    def _target(self, reference: Json) -> Json:
        """Return the target of a reference within the document, or None."""
        if not isinstance(reference, str):
            self.is_bounded = False
            return None
        found = self._resolve(reference) if reference.startswith("#") else None
        if found is None:
            self.unresolved = reference
        is_plain = _PLAIN_POINTER.fullmatch(reference) is not None
        if found is None or not is_plain or not self._is_one_resource():
            self.is_bounded = False
        return found

    def _resolve(self, reference: str) -> Json:
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchored_parts().get(pointer)
        found: Json = self.root
        for step in pointer.split("/")[1:]:
            found = _member(found, step.replace("~1", "/").replace("~0", "~"))
        return found

    def _anchored_parts(self) -> dict[str, Json]:
        if self._anchors is None:
            self._anchors = {
                name: part
                for part in _objects_in(self.root)
                for keyword in ("$anchor", "$dynamicAnchor")
                if isinstance(name := part.get(keyword), str)
            }
        return self._anchors

    def _is_one_resource(self) -> bool:
        """Return whether no part sets its own base for references or dialect."""
        if self._has_several_resources is None:
            self._has_several_resources = any(
                part is not self.root and isinstance(part.get(keyword), str)
                for part in _objects_in(self.root)
                for keyword in ("$id", "$schema")
            )
        return not self._has_several_resources


def _objects_in(schema: JsonObject) -> Iterator[JsonObject]:
    parts: list[Json] = [schema]
    while parts:
        part = parts.pop()
        if is_object(part):
            yield part
            parts.extend(part.values())
        elif is_list(part):
            parts.extend(part)


def _member(value: Json, step: str) -> Json:
    if is_object(value):
        return value.get(step)
    if is_list(value) and _INDEX.fullmatch(step) and int(step) < len(value):
        return value[int(step)]
    return None


def weight_of(value: Json, limit: int) -> int:
    """Count the values in a value. Stop above `limit`. A long text counts as several values."""
    weight = 0
    parts: list[Json] = [value]
    while parts and weight <= limit:
        part = parts.pop()
        weight += 1
        if isinstance(part, str):
            weight += len(part) // 16
        elif is_object(part):
            parts.extend(part.values())
            weight += sum(map(len, part)) // 16
        elif is_list(part):
            parts.extend(part)
    return weight
