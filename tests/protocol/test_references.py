from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.references import (
    insert_references,
    reference_to,
    references_in,
    resolve_references,
)

FORGED: JsonObject = {"$artifact": reference_to(b"1")}
NAMES = st.sampled_from(["a", "artifact", "$artifact", "$$artifact", "$$$artifact"])
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.text(max_size=3), st.just(FORGED)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
)


@given(VALUES)
def test_user_data_survives_escaping_and_is_never_a_reference(value: Json) -> None:
    stored = insert_references(value, {})

    assert list(references_in(stored)) == []
    assert resolve_references(stored, {FORGED["$artifact"]["artifactId"]: "forged"}) == value


def test_values_are_restored_from_their_references() -> None:
    large = ["large"]
    reference = reference_to(b'["large"]')

    stored = insert_references(
        {"a": large, "b": [large, {"$artifact": large}]}, {id(large): reference}
    )

    shown = {"$artifact": reference}
    assert stored == {"a": shown, "b": [shown, {"$$artifact": shown}]}
    assert list(references_in(stored)) == [reference] * 3
    values = {reference["artifactId"]: large}
    assert resolve_references(stored, values) == {"a": large, "b": [large, {"$artifact": large}]}


def test_very_deeply_nested_data_is_never_resolved_and_never_exhausts_the_stack() -> None:
    deep: Json = reduce(lambda inner, _: {"$artifact": [inner]}, range(450), FORGED)

    stored = insert_references(deep, {})

    assert list(references_in(stored)) == []
    assert resolve_references(stored, {FORGED["$artifact"]["artifactId"]: "forged"}) == deep
