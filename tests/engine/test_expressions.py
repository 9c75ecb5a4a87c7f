from __future__ import annotations

import time
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulation import REENTRANT, node, sketch, state_of
from wopr.engine.cel.expressions import (
    FUNCTIONS,
    WORKFLOW_NAMES,
    ExpressionFault,
    compile_fault,
    condition_faults,
    condition_holds,
    evaluate,
    evaluate_for_host,
)
from wopr.engine.cel.tokens import cel, tokenize
from wopr.engine.graph import compile_graph
from wopr.engine.triggers import expression_scope
from wopr.protocol.documents import UNSET, Json
from wopr.protocol.offloading import WorkNeeded, known_results
from wopr.protocol.workflow import EdgeCondition

# Far above what the cost limit allows on an idle machine, far below a hang.
DEADLINE_SECONDS = 20.0

json_values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
SCOPE: dict[str, Json] = {
    "outputs": {"approved": True, "score": 1.5, "tags": ["a", 1], "user": {"name": "ann"}},
    "output": {"approved": True},
    "variables": {"x": 2, "nothing": None},
    "status": "completed",
    "error": {},
}


@pytest.mark.parametrize("score", [1.5, 2, 2.0])
def test_whole_numbers_and_fractions_compare_as_numbers(score: float) -> None:
    scope = {"outputs": {"score": score, "two": 2}}

    assert evaluate("outputs.score > 1", scope) is True
    assert evaluate("outputs.score >= 1.5", scope) is True
    assert evaluate("outputs.score == outputs.two", scope) is (score == 2)
    assert evaluate("outputs.score in [2]", scope) is (score == 2)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("[1, 2.5, 'x', null, true]", [1, 2.5, "x", None, True]),
        ("{'b': {'c': 1u}, 'a': 1}", {"a": 1, "b": {"c": 1}}),
        ("timestamp('2026-01-01T00:00:00Z')", "2026-01-01T00:00:00Z"),
        ("duration('90m')", "5400s"),
        ("nodes['write-a'].rows.filter(r, r.n > 1).map(r, r.n)", [2]),
        ("has(inputs.x) ? inputs.x : 'none'", "none"),
        ("r'\\' + '(' // (", "\\("),
        ('"""(\n"""', "(\n"),
        ("1 in [2].map(x, x - 1)", True),
        ("'ab'.matches('^a[b]{1}$')", True),
        ("nodes.all(k, k == 'write-a')", True),
    ],
)
def test_a_value_is_returned_as_plain_json(source: str, value: Json) -> None:
    scope = {"nodes": {"write-a": {"rows": [{"n": 1}, {"n": 2}]}}, "inputs": {}}

    assert evaluate(source, scope) == value


def test_keys_of_an_object_are_always_in_the_same_order() -> None:
    orders = {tuple(evaluate("inputs", {"inputs": dict.fromkeys("hgfedcba")})) for _ in range(20)}

    assert orders == {tuple("abcdefgh")}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("inputs.a.b", "'a'"),
        ("inputs['a']", "'a'"),
        ("nowhere", "'nowhere'"),
        ("inputs.list[5]", "out of bounds"),
        ("1 / 0", "division by zero"),
        ("b'x'", "bytes"),
        ("{1: 2}", "key"),
        ("1.0 / 0.0", "finite"),
        ("optional.of(1)", "JSON"),
        ("'a' + 1", "fails"),
        ("1 +", "column 4"),
        ("", "column 1"),
    ],
)
def test_an_expression_without_a_value_has_a_short_one_line_reason(
    source: str, message: str
) -> None:
    with pytest.raises(ExpressionFault) as caught:
        evaluate(source, {"inputs": {"list": []}})

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 220


@pytest.mark.parametrize(
    "source",
    ["text.__class__", "text.upper()", "list.append(1)", "object.__dict__", "__import__('os')"],
)
def test_no_expression_reaches_a_python_attribute(source: str) -> None:
    with pytest.raises(ExpressionFault):
        evaluate(source, {"text": "x", "list": [], "object": {}})


def test_a_value_that_is_not_json_is_refused() -> None:
    with pytest.raises(ExpressionFault):
        evaluate("thing", {"thing": object()})


def test_an_expression_longer_than_the_cap_is_refused() -> None:
    assert compile_fault("1" + "+1" * 2047) is None
    assert compile_fault("1" + "+1" * 2048) == "is longer than 4096 characters"


NUMBERS = list(range(1000))
ROWS = [{"id": n, "name": "x" * 20, "tags": ["a", "b"]} for n in range(500)]


HEAVY: dict[str, Json] = {
    "n": NUMBERS,
    "rows": ROWS,
    "text": "ab" * 250_000,
    "inputs": {"rows": [0] * 200_000},
}


@pytest.mark.parametrize(
    "source",
    [
        "n.map(x, n.map(y, y))",
        "n.map(x, n)",
        "n.map(x, n.map(y, n.map(z, z))).size()",
        "n.exists(x, n.exists(y, n.exists(z, x + y + z < 0)))",
        "0 in n.map(x, n.map(y, y))",
        "[0] + [1, 2].map(x, n.map(y, n))",
        "[1]" + ".map(a, [a, a, a, a])" * 40,
        "[1]" + ".map(a, [a, a, a, a])" * 40 + ".all(a, a == a)",
        "+".join(["text"] * 600) + " == ''",
        "[" + ",".join(["rows"] * 800) + "] == []",
        "[inputs.rows, inputs.rows.size(), inputs.rows.all(x, true)] == [inputs, inputs.rows]",
        "(n + n + n).map(x, rows)",
        "{'a': n}.a.map(x, n.map(y, y))",
        "dyn(n).map(x, n.map(y, y))",
        "n.exists(x, 'abc'.matches('\\\\pL{200}c{30}'))",
        "text.matches('(?-u:[ab]*a[ab]{50000}c)')",
    ],
)
def test_an_expression_that_would_run_long_is_refused_at_once(source: str) -> None:
    started = time.process_time()

    with pytest.raises(ExpressionFault, match="could take too long"):
        evaluate(source, HEAVY)

    assert time.process_time() - started < DEADLINE_SECONDS


@pytest.mark.parametrize(
    "source",
    [
        "n.map(x, x * 2).size() == 1000",
        "n.exists(x, x == 999)",
        "rows.exists(r, r.tags.exists(t, t == 'b'))",
        "rows.filter(r, r.id > 400).size() == 99",
        "rows.all(r, r.name.matches('^x+$'))",
        "text.matches('^(a|b|ab)*$')",
    ],
)
def test_ordinary_work_on_hundreds_of_items_is_allowed(source: str) -> None:
    known: dict[str, Json] = {"n": NUMBERS, "rows": ROWS, "text": "ab" * 10_000}

    assert offloaded(source, known) is True


def offloaded(source: str, known: dict[str, Json]) -> Json:
    """Evaluate an expression, even if a subprocess would do it."""
    try:
        return evaluate(source, known)
    except WorkNeeded as needed:
        _, _, arguments = msgspec.json.decode(cast("bytes", needed.work))
        with known_results({needed.key: evaluate_for_host(*arguments)}):
            return evaluate(source, known)


def test_an_expensive_expression_without_data_is_refused_at_registration() -> None:
    assert compile_fault("[1]" + ".map(a, [a, a, a, a])" * 40) is not None


@pytest.mark.parametrize(
    "source", ["text.matches(pattern)", "text.matches('a' + 'b')", "text.matches('(?x)a')"]
)
def test_a_pattern_without_a_bound_is_refused_at_registration(source: str) -> None:
    fault = compile_fault(source)

    assert fault is not None
    assert "pattern" in fault


@pytest.mark.parametrize("source", ["inputs.map(k, k)", "{'a': 1}.filter(k, true)"])
def test_an_object_cannot_be_listed_because_it_has_no_order(source: str) -> None:
    with pytest.raises(ExpressionFault, match="no order"):
        evaluate(source, {"inputs": {"a": 1, "b": 2}})


def test_a_value_nested_too_deeply_is_refused_before_conversion() -> None:
    deep: Json = 1
    for _ in range(30_000):
        deep = [deep]

    with pytest.raises(ExpressionFault, match="nested"):
        evaluate("size(deep)", {"deep": deep})


@pytest.mark.parametrize("source", ["size(inputs.rows) > 1", "size(inputs.some) == size(other)"])
def test_more_data_than_can_be_converted_in_time_is_refused(source: str) -> None:
    scope = {"inputs": {"rows": [0] * 600_000, "some": [0] * 150_000}, "other": [0] * 150_000}

    with pytest.raises(ExpressionFault, match="too long"):
        evaluate(source, scope)


def test_data_that_an_expression_does_not_read_costs_nothing() -> None:
    scope = {"inputs": {"rows": [0] * 600_000, "ok": True}}

    assert evaluate("inputs.ok", scope) is True


@pytest.mark.parametrize("source", ["`a`", "'a", "(", "(]", ")"])
def test_text_that_cannot_be_tokenized_is_refused(source: str) -> None:
    with pytest.raises(ExpressionFault, match="cannot be read"):
        tokenize(source)


class PanicException(BaseException):
    pass


class _Program:
    def __init__(self, raised: BaseException) -> None:
        self._raised = raised

    def execute(self, _: object) -> object:
        raise self._raised


def test_a_panic_of_the_library_is_an_expression_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cel, "compile", lambda _: _Program(PanicException("boom")))

    with pytest.raises(ExpressionFault, match="library"):
        evaluate("panics", {})


def test_a_keyboard_interrupt_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cel, "compile", lambda _: _Program(KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        evaluate("interrupted", {})


@given(st.text(max_size=40) | st.text("ab.()[]{}'\"\\,+?:!<&|= \n/r1map", max_size=40))
@settings(deadline=None)
def test_any_text_is_an_expression_or_an_expression_fault(source: str) -> None:
    fault = compile_fault(source)

    assert fault is None or ("\n" not in fault and fault != "")


@given(json_values)
def test_a_plain_value_passes_through_unchanged(value: Json) -> None:
    assert evaluate("inputs.x", {"inputs": {"x": value}}) == value


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        (EdgeCondition(expression="outputs.approved && status == 'completed'"), True),
        (EdgeCondition(expression="output.approved == false"), False),
        (EdgeCondition(type="equals", left="status", right="completed"), True),
        (EdgeCondition(type="equals", left="output.approved", right=True), True),
        (EdgeCondition(type="equals", left="output.approved", right=1), False),
        (EdgeCondition(type="equals", left="variables.x", right=2.0), True),
        (EdgeCondition(type="equals", left="variables.nothing", right=None), True),
        (EdgeCondition(type="equals", left="variables.missing", right=None), False),
        (EdgeCondition(type="equals", left="approved", right=True), True),
        (EdgeCondition(type="equals", left="user.name", right="ann"), True),
        (EdgeCondition(type="equals", left="tags", right=["a", 1.0]), True),
        (EdgeCondition(type="equals", left="tags", right=["a"]), False),
        (EdgeCondition(type="equals", left="user", right={"name": "ann"}), True),
        (EdgeCondition(type="equals", left="user", right={"name": True}), False),
        (EdgeCondition(type="equals", left="tags.1", right=1), True),
        (EdgeCondition(type="equals", left="tags.2", right=1), False),
        (EdgeCondition(type="equals", left="tags.x", right=1), False),
        (EdgeCondition(type="notEquals", left="status", right="failed"), True),
        (EdgeCondition(type="notEquals", left="status", right="completed"), False),
        (EdgeCondition(type="notEquals", left="missing", right="x"), True),
        (EdgeCondition(type="contains", left="status", right="plete"), True),
        (EdgeCondition(type="contains", left="status", right=1), False),
        (EdgeCondition(type="contains", left="tags", right=1), True),
        (EdgeCondition(type="contains", left="tags", right=True), False),
        (EdgeCondition(type="contains", left="user", right="name"), True),
        (EdgeCondition(type="contains", left="score", right=1), False),
        (EdgeCondition(type="contains", left="missing", right="x"), False),
        (EdgeCondition(type="regex", left="status", right="^comp"), True),
        (EdgeCondition(type="regex", left="status", right="^plete"), False),
        (EdgeCondition(type="regex", left="score", right="1"), False),
        (EdgeCondition(type="regex", left="missing", right=".*"), False),
        (EdgeCondition(type="equals"), False),
    ],
)
def test_a_condition_is_true_or_false(condition: EdgeCondition, met: bool) -> None:
    assert condition_holds(condition, SCOPE) is met


def test_a_condition_that_is_not_true_or_false_is_a_fault() -> None:
    with pytest.raises(ExpressionFault, match="true or false"):
        condition_holds(EdgeCondition(expression="variables.x"), SCOPE)


def test_an_expression_condition_without_an_expression_is_a_fault() -> None:
    with pytest.raises(ExpressionFault):
        condition_holds(EdgeCondition(), SCOPE)


def test_a_regex_that_blocks_backtracking_engines_returns() -> None:
    condition = EdgeCondition(type="regex", left="text", right="^(a+)+$")

    assert condition_holds(condition, {"outputs": {"text": "a" * 50_000 + "b"}}) is False


def test_a_regex_too_large_for_its_text_is_refused() -> None:
    condition = EdgeCondition(type="regex", left="text", right="(?-u:[ab]*a[ab]{9000}c)")

    with pytest.raises(ExpressionFault, match="too long"):
        condition_holds(condition, {"outputs": {"text": "ab" * 50_000}})


@given(
    kind=st.sampled_from(["equals", "notEquals", "contains", "regex"]),
    left=st.sampled_from(["x", "outputs.x", "x.0", "x.a.b", "", ".", "status"]),
    right=json_values | st.just(UNSET),
    value=json_values,
)
@settings(deadline=None)
def test_a_comparison_has_a_result_or_is_an_expression_fault(
    kind: str, left: str, right: Json, value: Json
) -> None:
    condition = EdgeCondition(type=kind, left=left, right=right)  # type: ignore[arg-type]  # drawn from the four names

    try:
        answer = condition_holds(condition, {"outputs": {"x": value}, "status": value})
    except ExpressionFault:
        return

    assert isinstance(answer, bool)


@pytest.mark.parametrize(
    ("condition", "faults"),
    [
        (EdgeCondition(), ["needs expression"]),
        (EdgeCondition(expression="1 +"), ["expression '1 +' fails"]),
        (EdgeCondition(expression="a.b == 1"), ["names 'a', which is not defined here"]),
        (EdgeCondition(type="equals"), ["needs left", "needs right"]),
        (EdgeCondition(type="contains", left="", right=1), ["needs left"]),
        (EdgeCondition(type="regex", left="a"), ["needs right"]),
        (EdgeCondition(type="regex", left="a", right="("), ["right fails"]),
        (EdgeCondition(type="regex", left="a", right=3), ["regular expression"]),
        (EdgeCondition(type="regex", left="a", right="a{9000}{9000}"), ["too long"]),
        (EdgeCondition(type="regex", left="a", right="^a"), []),
        (EdgeCondition(type="equals", left="a", right=None), []),
        (EdgeCondition(expression="outputs.b == 1"), []),
    ],
)
def test_registration_names_what_is_wrong_with_a_condition(
    condition: EdgeCondition, faults: list[str]
) -> None:
    found = condition_faults(condition, ["a"])

    assert len(found) == len(faults)
    assert all(part in fault for part, fault in zip(faults, found, strict=True))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_library_has_every_function_that_registration_accepts(name: str) -> None:
    arguments = ["1", "1u", "'a'", "'1s'", "'2026-01-01T00:00:00Z'"]
    moments = ["timestamp('2026-01-01T00:00:00Z')", "optional.of(1)"]
    calls = [f"{name}({each})" for each in arguments]
    calls += [f"{each}.{name}()" for each in moments]
    calls += [f"'a'.{name}('a')", f"optional.{name}()", f"optional.{name}(1)"]
    calls += [f"optional.of(1).{name}({each})" for each in ("1", "optional.of(1)")]

    assert any(_runs(call) for call in calls)


def _runs(source: str) -> bool:
    try:
        cel.compile(source).execute({})
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def test_the_scope_of_a_run_has_the_names_that_registration_knows() -> None:
    state = state_of(compile_graph(sketch([node("a")]), REENTRANT))

    assert set(expression_scope(state)) == set(WORKFLOW_NAMES)
