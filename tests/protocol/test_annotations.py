from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.json_schema.export import export
from wopr.protocol.resources.annotations import (
    KINDS_WITH_VALUE,
    SIGNAL_KINDS,
    Actor,
    Annotation,
    AnnotationCreate,
    Signal,
    Target,
)

if TYPE_CHECKING:
    from tests.protocol.conftest import Official

OWN = jsonschema_rs.validator_for(export()["annotation-create"], offline=True)
GOOD: dict[str, JsonObject] = {
    "rating": {"kind": "rating", "rating": 3},
    "correction": {"kind": "correction", "correction": "better"},
    "label": {"kind": "label", "label": "tone"},
    "flag": {"kind": "flag"},
}

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 7),
    st.sampled_from([1.0, 4.0, 5.0, 2.5, 0.999, 6.0, 4.000001]),
    st.text(max_size=4),
    st.just([]),
    st.just({}),
)
SIGNALS = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.one_of(st.sampled_from([*SIGNAL_KINDS, "stars", ""]), ANYTHING),
        "rating": ANYTHING,
        "label": ANYTHING,
        "correction": ANYTHING,
        "score": ANYTHING,
    },
)
BODIES = st.fixed_dictionaries(
    {"signal": st.one_of(SIGNALS, ANYTHING)},
    optional={
        "note": ANYTHING,
        "target": st.one_of(
            ANYTHING,
            st.fixed_dictionaries(
                {}, optional={"eventId": ANYTHING, "nodeId": ANYTHING, "runId": ANYTHING}
            ),
        ),
        "actor": st.just({"principalRef": "somebody"}),
    },
)


def read(body: Json) -> AnnotationCreate | None:
    """Decode a body; return None when the decoder refuses it."""
    try:
        return msgspec.json.decode(json.dumps(body).encode(), type=AnnotationCreate)
    except msgspec.ValidationError:
        return None


def has_only_its_own_field(body: JsonObject) -> bool:
    signal = body["signal"]
    return all(name == signal["kind"] for name in KINDS_WITH_VALUE if name in signal)


@given(body=BODIES)
def test_a_body_is_accepted_exactly_when_our_own_schema_allows_it(
    body: JsonObject,
) -> None:
    assert (read(body) is not None) == OWN.is_valid(body)


@given(body=BODIES)
def test_a_body_is_accepted_when_the_published_schema_and_the_only_if_rule_allow_it(
    official: Official, body: JsonObject
) -> None:
    is_published = official.fault("annotation-create.schema.json", body) is None

    assert (read(body) is not None) == (is_published and has_only_its_own_field(body))


@pytest.mark.parametrize("kind", SIGNAL_KINDS)
@pytest.mark.parametrize("other", KINDS_WITH_VALUE)
def test_a_field_of_another_kind_is_refused(kind: str, other: str) -> None:
    signal = {**GOOD[other], **GOOD[kind]}

    assert (read({"signal": signal}) is not None) == (kind == other)


@pytest.mark.parametrize("kind", KINDS_WITH_VALUE)
def test_the_field_of_the_kind_is_required(kind: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"missing required field `{kind}`"):
        msgspec.convert({"kind": kind}, Signal)


@pytest.mark.parametrize("rating", [1, 5, 4.0])
def test_a_rating_is_an_integer_in_any_notation(rating: float) -> None:
    request = read({"signal": {"kind": "rating", "rating": rating}})

    assert request is not None
    assert type(request.signal.rating) is int
    assert request.signal.stars == rating


@pytest.mark.parametrize("rating", [0, 6, 2.5, "4", True, False, None, [4], -1, 5.5])
def test_an_invalid_rating_is_refused(rating: Json) -> None:
    assert read({"signal": {"kind": "rating", "rating": rating}}) is None


@pytest.mark.parametrize(
    "intruder", ["annotationId", "createdAt", "actor", "runId", "tenant", "principalRef"]
)
def test_a_client_cannot_set_the_members_of_the_host(intruder: str) -> None:
    body = {"signal": {"kind": "flag"}, intruder: "x"}

    with pytest.raises(msgspec.ValidationError, match=f"unknown field `{intruder}`"):
        msgspec.convert(body, AnnotationCreate)


@pytest.mark.parametrize("kind", SIGNAL_KINDS)
def test_empty_texts_are_valid(kind: str) -> None:
    signal = {name: "" if value == name else value for name, value in GOOD[kind].items()}

    assert read({"signal": signal, "note": "", "target": {}}) is not None


@pytest.mark.parametrize("kind", SIGNAL_KINDS)
def test_a_written_annotation_satisfies_the_published_schema(official: Official, kind: str) -> None:
    annotation = Annotation(
        annotation_id="ann-1",
        target=Target(run_id="run-1", event_id="e", node_id="n"),
        signal=msgspec.convert(GOOD[kind], Signal),
        actor=Actor(principal_ref="key-1"),
        created_at="2026-01-01T00:00:00.000Z",
        note="why",
    )

    written = msgspec.json.decode(msgspec.json.encode(annotation))

    assert official.fault("annotation.schema.json", written) is None
    assert jsonschema_rs.validator_for(export()["annotation"], offline=True).is_valid(written)
