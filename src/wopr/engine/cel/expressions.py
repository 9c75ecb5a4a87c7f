"""Expressions and edge conditions in CEL, with a limited cost. Values are plain JSON.

An expression can read only its scope, and no Python object, attribute or import. Whole numbers and
fractions compare as numbers; arithmetic follows CEL, which mixes them only with `int(x)` or
`double(x)`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar, cast

import msgspec

from wopr.engine.cel.cost import (
    check_cost,
    check_pattern,
    check_scope,
    is_plain,
    search_cost,
)
from wopr.engine.cel.tokens import (
    ExpressionFault,
    Token,
    cel,
    macro_variables,
    names_read,
    narrow_scope,
    tokenize,
)
from wopr.protocol.documents import UNSET, Json, Unset, is_list, is_object, json_equal
from wopr.protocol.offloading import WorkFailed, compute_once, offload
from wopr.protocol.suggestions import suggest_name
from wopr.protocol.workflow import EdgeCondition

__all__ = [
    "ExpressionFault",
    "ExpressionUse",
    "compile_fault",
    "condition_faults",
    "condition_holds",
    "evaluate",
    "is_true",
    "use_fault",
    "value_at_path",
]

MAX_SOURCE: Final = 4096
# Expressions up to this cost, about 5 ms, are evaluated in this process, others in a subprocess.
MAX_INLINE_COST: Final = 50_000
# The cost of converting one value of the scope.
_CONVERSION: Final = 10
# A constant up to this cost is evaluated at registration.
_CONSTANT_COST: Final = 50_000
# The names that every expression of a workflow can read, and those that edges add.
WORKFLOW_NAMES: Final = ("inputs", "variables", "channels", "nodes")
EDGE_NAMES: Final = ("outputs", "output", "status", "error")
# The functions of the library: it has no list of them. Macros are not functions.
FUNCTIONS: Final = frozenset(
    {
        *("bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"),
        *("contains", "endsWith", "matches", "size", "startsWith"),
        *("getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear"),
        *("getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds"),
        *("hasValue", "none", "of", "ofNonZeroValue", "or", "orValue", "value"),
    }
)
_ARITHMETIC: Final = frozenset("+-*/%")
_LOGIC: Final = frozenset({"=", "<", ">", "!", "&", "|", "?", "in"})
_MAX_QUOTED: Final = 200
_MAX_MESSAGE: Final = 200
_INDEX: Final = re.compile(r"[0-9]{1,9}")
_HASHED_TEXT: Final = 1024
_Result = TypeVar("_Result")
# Takes the cost of a condition and returns whether a subprocess must evaluate it.
IsLarge: TypeAlias = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class _CompiledExpression:
    program: cel.Program
    tokens: tuple[Token, ...]
    is_plain: bool
    reads: Mapping[str, set[str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionUse:
    """An expression of a definition: its place, and the names that it can read there.

    `names` are in addition to `WORKFLOW_NAMES`. A condition must give true or false.
    """

    path: str
    source: str
    names: Collection[str] = ()
    is_condition: bool = False


def compile_fault(source: str) -> str | None:
    """Return why an expression cannot be parsed or costs too much, in one line, or None."""
    try:
        check_cost(_compile(source).tokens, {})
    except ExpressionFault as fault:
        return str(fault)
    return None


def use_fault(use: ExpressionUse, node_ids: Collection[str]) -> str | None:
    """Return why an expression fails in every run, or None if it may succeed.

    The library checks no types. A condition is refused if it is a constant that is not a boolean, a
    name of the scope or an arithmetic operation: no name of a scope is a boolean.
    """
    fault = compile_fault(use.source) or _meaning_fault(use, node_ids)
    return None if fault is None else f"expression {_quoted(use.source)} {fault}"


def _meaning_fault(use: ExpressionUse, node_ids: Collection[str]) -> str | None:
    compiled = _compile(use.source)
    bound = macro_variables(compiled.tokens)
    read = [
        name
        for name in compiled.program.variables()
        if name not in bound and not _is_built_in(name)
    ]
    known = {*WORKFLOW_NAMES, *use.names}
    for name in compiled.program.functions():
        if name.isidentifier() and name not in FUNCTIONS:
            return f"calls {name!r}, which is not a function: {suggest_name(name, FUNCTIONS)}"
    for name in read:
        if name not in known:
            return f"names {name!r}, which is not defined here: {suggest_name(name, known)}"
    for node_id in sorted(compiled.reads.get("nodes") or ()) if "nodes" in read else ():
        if node_id not in node_ids:
            return (
                f"reads node {node_id!r}, which the workflow does not have: "
                f"{suggest_name(node_id, node_ids)}"
            )
    return _value_fault(use, compiled.tokens, is_constant=not read)


def _value_fault(use: ExpressionUse, tokens: tuple[Token, ...], *, is_constant: bool) -> str | None:
    """Return what is wrong with the value of a constant expression."""
    if is_constant:
        try:
            if check_cost(tokens, {}) > _CONSTANT_COST:
                # The run evaluates it later, under a deadline.
                return None
            value = _value(use.source, {})
        except ExpressionFault as fault:
            return str(fault)
        return _not_boolean(value) if use.is_condition else None
    if use.is_condition and (len(tokens) == 1 or _is_arithmetic(tokens)):
        return "never gives true or false, and a condition must"
    return None


def _is_arithmetic(tokens: tuple[Token, ...]) -> bool:
    """Return whether the outermost operation of an expression gives a number, a text or a list."""
    depth = 0
    operators: set[str] = set()
    for token in tokens:
        depth += (token.kind == "open") - (token.kind == "close")
        if token.kind == "other" and depth == 0:
            operators.add(token.source)
    return bool(operators & _ARITHMETIC) and not operators & _LOGIC


@lru_cache(maxsize=256)
def _is_built_in(name: str) -> bool:
    """Return whether the library itself defines a name, for example a type."""
    try:
        _call_library(lambda: cel.compile(name).execute({}))
    except ExpressionFault:
        # `optional` is the namespace of optional.of() and optional.none() and has no value.
        return name == "optional"
    return True


def _is_large(cost: int) -> bool:
    return cost > MAX_INLINE_COST


def evaluate(source: str, scope: Mapping[str, Json], is_large: IsLarge = _is_large) -> Json:
    """Return the value of an expression as JSON. Raises `ExpressionFault` if it has no value."""
    try:
        return _value(source, scope, is_large)
    except ExpressionFault as fault:
        raise ExpressionFault(f"expression {_quoted(source)} {fault}") from fault


def is_true(source: str, scope: Mapping[str, Json]) -> bool:
    """Return whether a condition holds. Raises `ExpressionFault` if the result is not a boolean."""
    return _is_true(source, scope, _is_large)


def _is_true(source: str, scope: Mapping[str, Json], is_large: IsLarge) -> bool:
    value = evaluate(source, scope, is_large)
    fault = _not_boolean(value)
    if fault is not None:
        raise ExpressionFault(f"expression {_quoted(source)} {fault}")
    return value is True


def _value(source: str, scope: Mapping[str, Json], is_large: IsLarge = _is_large) -> Json:
    compiled = _compile(source)
    context = narrow_scope(scope, compiled.reads)
    cost = check_scope(context) * _CONVERSION
    if not compiled.is_plain:
        cost += check_cost(compiled.tokens, context)
    if is_large(cost):
        return _in_subprocess(evaluate_for_host, source, context)
    return _call_library(lambda: _to_json(compiled.program.execute(context)))


def _in_subprocess(function: Callable[..., Json], *arguments: Json) -> Json:
    """Call a function in a subprocess. Raises `WorkNeeded` until the result is known."""
    key = msgspec.json.encode([function.__name__, *(_key_part(each) for each in arguments)])
    try:
        reply: Json = offload(function, *arguments, key=key)
    except WorkFailed as failed:
        raise ExpressionFault(f"could not be evaluated: {failed}") from failed
    return _unwrap_reply(reply)


def _unwrap_reply(reply: Json) -> Json:
    if "fault" in reply:
        raise ExpressionFault(reply["fault"])
    return reply["value"]


def _key_part(argument: Json, levels: int = 2) -> Json:
    """Replace large values by their digests. The values of a run are two levels deep in a scope."""
    if is_object(argument) and levels:
        return {key: _key_part(value, levels - 1) for key, value in argument.items()}
    if isinstance(argument, str) and len(argument) <= _HASHED_TEXT:
        return argument
    return (
        [compute_once(_digest, argument)] if isinstance(argument, str | list | dict) else argument
    )


def _digest(value: Json) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()


def evaluate_for_host(source: str, scope: dict[str, Json]) -> Json:
    """Evaluate an expression whose cost was checked. Called in a subprocess."""
    try:
        program = _compile(source).program
        return {"value": _call_library(lambda: _to_json(program.execute(scope)))}
    except ExpressionFault as fault:
        return {"fault": str(fault)}


def _not_boolean(value: Json) -> str | None:
    """Return the fault of a result that is not a boolean, or None.

    The fault names the type and not the value, which may be sensitive.
    """
    match value:
        case bool():
            return None
        case None:
            kind = "null"
        case int() | float():
            kind = "a number"
        case str():
            kind = "a string"
        case list():
            kind = "an array"
        case _:
            kind = "an object"
    return f"gives {kind}, and a condition must give true or false"


def _quoted(source: str) -> str:
    return repr(source if len(source) <= _MAX_QUOTED else f"{source[:_MAX_QUOTED]}…")


def condition_holds(
    condition: EdgeCondition, scope: Mapping[str, Json], is_large: IsLarge = _is_large
) -> bool:
    """Return whether an edge's condition holds.

    A path without a value differs from every value and contains nothing. Raises `ExpressionFault`
    if an expression has no value, or one that is not a boolean.
    """
    if condition.type == "expression":
        return _expression_holds(condition, scope, is_large)
    left = UNSET if isinstance(condition.left, Unset) else _resolve(condition.left, scope)
    if condition.type in ("equals", "notEquals"):
        # The right side is in the definition, so its size bounds the comparison.
        return json_equal(left, condition.right) is (condition.type == "equals")
    if condition.type == "contains":
        cost, compare = search_cost(left, condition.right), contains_for_host
    else:
        cost, compare = _matching_cost(left, condition.right), matches_for_host
    if is_large(cost):
        return _in_subprocess(compare, left, condition.right) is True
    return _unwrap_reply(compare(left, condition.right)) is True


def condition_faults(condition: EdgeCondition, node_ids: Collection[str]) -> list[str]:
    """Return the faults of a condition of a definition."""
    if condition.type == "expression":
        if isinstance(condition.expression, Unset):
            return ["an expression condition needs expression"]
        use = ExpressionUse(
            path="", source=condition.expression, names=EDGE_NAMES, is_condition=True
        )
        fault = use_fault(use, node_ids)
        return [] if fault is None else [fault]
    return list(_comparison_faults(condition))


def value_at_path(value: Json, path: str) -> Json:
    """Return the value at a dotted path, list items by index; `UNSET` if there is none."""
    for segment in path.split("."):
        value = _step(value, segment)
    return value


# A long compiled expression takes half a megabyte.
@lru_cache(maxsize=256)
def _compile(source: str) -> _CompiledExpression:
    if len(source) > MAX_SOURCE:
        raise ExpressionFault(f"is longer than {MAX_SOURCE} characters")
    program = _call_library(lambda: cel.compile(source))
    tokens = tokenize(source)
    return _CompiledExpression(program, tokens, is_plain(tokens), names_read(tokens))


def _call_library(call: Callable[[], _Result]) -> _Result:
    """Call the library. Every exception becomes an `ExpressionFault`."""
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
        raise ExpressionFault("crashed the expression library") from panic


def _reason(error: Exception) -> str:
    text = str(error)
    undefined = re.match(r"Undefined variable or function: '([^']*)'", text)
    if undefined is not None and undefined[1] in FUNCTIONS:
        return f"calls {undefined[1]!r} with arguments that it does not take"
    if undefined is not None:
        return f"names {undefined[1]!r}, which is not defined here"
    syntax = re.search(r"ERROR: <input>:(\d+):(\d+): (.*)", text)
    if syntax is not None:
        line, column, what = syntax.groups()
        text = f"{what.split(' expecting {')[0]} at line {line}, column {column}"
    else:
        text = text.split(". ")[0]
    return f"fails: {' '.join(text.split())}"[:_MAX_MESSAGE]


def _to_json(value: object) -> Json:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return _require_finite(value)
        case list():
            return [_to_json(item) for item in cast("list[object]", value)]
        case dict():
            # The library returns keys in random order, and a replay must give the same bytes.
            entries = {_key(key): item for key, item in cast("dict[object, object]", value).items()}
            return {key: _to_json(entries[key]) for key in sorted(entries)}
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return f"{value.total_seconds():g}s"
        case _:
            raise ExpressionFault(f"gives {type(value).__name__}, which JSON cannot carry")


def _require_finite(value: float) -> float:
    if not math.isfinite(value):
        raise ExpressionFault("gives a number that is not finite")
    return value


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ExpressionFault("gives an object with a key that is not a text")
    return key


def _expression_holds(
    condition: EdgeCondition, scope: Mapping[str, Json], is_large: IsLarge
) -> bool:
    if isinstance(condition.expression, Unset):
        raise ExpressionFault("an expression condition needs expression")
    return _is_true(condition.expression, scope, is_large)


def _resolve(path: str, scope: Mapping[str, Json]) -> Json:
    first, _, _ = path.partition(".")
    return value_at_path(scope if first in scope else scope.get("outputs", UNSET), path)


def _step(value: Json, segment: str) -> Json:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Json]", value).get(segment, UNSET)
    if is_list(value) and _INDEX.fullmatch(segment) and int(segment) < len(value):
        return value[int(segment)]
    return UNSET


def contains_for_host(left: Json, right: Json) -> Json:
    """Return whether a list, an object or a text contains a value.

    Called in this process or in a subprocess.
    """
    return {"value": _contains(left, right)}


def matches_for_host(left: Json, right: Json) -> Json:
    """Return whether a text matches a pattern. Called in this process or in a subprocess."""
    try:
        return {"value": _matches(left, right)}
    except ExpressionFault as fault:
        return {"fault": str(fault)}


def _contains(left: Json, right: Json) -> bool:
    if is_list(left):
        return any(json_equal(item, right) for item in left)
    if isinstance(left, str | dict) and isinstance(right, str):
        return right in left
    return False


def _matching_cost(left: Json, right: Json) -> int:
    if not isinstance(left, str) or not isinstance(right, str):
        return 1
    return check_pattern(right, left)


def _matches(left: Json, right: Json) -> bool:
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    check_pattern(right, left)
    program = _compile("text.matches(pattern)").program
    # The library's engine takes time linear in the text for every pattern.
    return bool(_call_library(lambda: program.execute({"text": left, "pattern": right})))


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
