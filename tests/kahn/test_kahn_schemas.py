"""The structs, the published schema and the emitters must agree on every line."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kahn_lines import AGENT_VARIANTS, CI_VARIANTS, SAMPLES, fields
from wopr.kahn.emitters.kahn_agent_emit import AgentEmitter
from wopr.kahn.emitters.kahn_emit import Emitter
from wopr.kahn.events import AGENT_SCHEMA, CI_SCHEMA, DIALECT, export_schemas
from wopr.kahn.lines import BadLine, encode_line, read_line
from wopr.protocol.documents import UNSET

PUBLISHED = {name: jsonschema_rs.validator_for(schema) for name, schema in export_schemas().items()}
_validator: Callable[[dict[str, object]], Any] = importlib.import_module(
    "jsonschema"
).Draft202012Validator
BUILT_IN = {
    AGENT_SCHEMA: _validator(AgentEmitter.schema()),
    CI_SCHEMA: _validator(Emitter.schema()),
}

TEXTS = st.sampled_from(
    [
        *("", "a", "A", "a\n", "a:b", "a.b", "a_b", "-", "running", "done", "thinking"),
        *("converged", "failed", "pass", "stuck", "partial", "x" * 64, "x" * 65),
        *("x" * 128, "x" * 129, "x" * 2048, "x" * 2049, "x" * 4097),
    ]
)
# Whole floats are left out: they are integers in JSON Schema, but not in the structs.
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([-0.5, 0.5, 1.5]),
    TEXTS,
    st.just({}),
    st.just([]),
    st.just([{"cmd": "c", "rc": 0, "duration_s": 0, "tail": "t"}]),
    st.just([{"cmd": "c", "rc": 1, "duration_s": 0, "truncated": False}]),
    st.just([{"cmd": "c", "rc": 1, "duration_s": 0.5, "tail": "t", "truncated": True}]),
    st.just([{"cmd": "c", "rc": True, "duration_s": 0}]),
    st.just(UNSET),
)


@st.composite
def changed_events(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(SAMPLES)))
    names = st.sampled_from([*fields(name), "own"])
    return fields(name, **draw(st.dictionaries(names, VALUES, max_size=2)))


@settings(max_examples=300, deadline=None)
@given(changed_events())
def test_published_schema_emitters_and_host_agree_on_every_line(
    event: dict[str, Any],
) -> None:
    is_read = _is_read(event)

    assert any(each.is_valid(event) for each in PUBLISHED.values()) is is_read
    assert any(each.is_valid(event) for each in BUILT_IN.values()) is is_read


def _is_read(event: dict[str, Any]) -> bool:
    try:
        read_line(encode_line(event))
    except BadLine:
        return False
    return True


@pytest.mark.parametrize("name", SAMPLES)
def test_a_line_belongs_to_the_schema_of_its_family_only(name: str) -> None:
    event = fields(name)

    assert PUBLISHED[AGENT_SCHEMA].is_valid(event) is (name in AGENT_VARIANTS)
    assert PUBLISHED[CI_SCHEMA].is_valid(event) is (name in CI_VARIANTS)


def test_a_schema_has_a_title_and_an_id() -> None:
    for name, schema in export_schemas().items():
        assert schema["$schema"] == DIALECT
        assert schema["$id"] == f"/v1/schemas/{name}.json"
