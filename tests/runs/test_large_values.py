from __future__ import annotations

import msgspec
import pytest

from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import Unavailable
from wopr.runs.large_values import LargeValues, memory_of
from wopr.store.port import Artifact

pytestmark = pytest.mark.anyio

MAX_BYTES = 100
TEXT = "x" * 500


class StoredArtifacts:
    """The artifacts of one run."""

    def __init__(self, new: list[tuple[JsonObject, bytes]]) -> None:
        self.bodies = {str(reference["artifactId"]): body for reference, body in new}

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        body = self.bodies.get(artifact_id)
        if body is None:
            return None
        return Artifact(
            artifact_id=artifact_id, node_id="", artifact_type="", created_at=0, body=body
        )


def outputs(**values: object) -> JsonObject:
    return {"nodeId": "a", "outputs": values}


def test_a_small_value_stays_in_its_event() -> None:
    payload = outputs(text="short")

    folded, stored, new = LargeValues().extract("node.completed", payload, MAX_BYTES)

    assert (folded, stored, new) == (payload, payload, [])


def test_a_large_value_is_stored_once_and_referred_to() -> None:
    payload = outputs(text=TEXT)

    folded, stored, new = LargeValues().extract("node.completed", payload, MAX_BYTES)

    [(reference, body)] = new
    assert folded == payload
    assert stored["outputs"] != payload["outputs"]
    assert msgspec.json.decode(body) == TEXT
    assert reference["bytes"] == len(body)


def test_an_equal_value_is_not_stored_again() -> None:
    values = LargeValues()
    values.extract("node.completed", outputs(text=TEXT), MAX_BYTES)

    folded, _, new = values.extract("node.completed", outputs(other="x" * 500), MAX_BYTES)

    assert new == []
    assert folded["outputs"]["other"] in values.values.values()


def test_members_that_readers_need_stay_in_the_event() -> None:
    payload: JsonObject = {"nodeId": TEXT, "error": {"message": TEXT}}

    _, stored, new = LargeValues().extract("node.failed", payload, MAX_BYTES)

    assert (stored, new) == (payload, [])


def test_a_copy_does_not_change_the_original() -> None:
    values = LargeValues()

    values.copy().extract("node.completed", outputs(text=TEXT), MAX_BYTES)

    assert (values.values, values.size, values.memory) == ({}, 0, 0)


async def test_a_stored_payload_is_resolved_to_its_values() -> None:
    _, stored, new = LargeValues().extract("node.completed", outputs(text=TEXT), MAX_BYTES)
    values = LargeValues()

    resolved = await values.resolve(StoredArtifacts(new), "acme", "run-1", stored["outputs"])

    assert resolved == {"text": TEXT}
    assert values.size == len(new[0][1])


async def test_a_missing_artifact_is_reported_with_its_run() -> None:
    _, stored, _ = LargeValues().extract("node.completed", outputs(text=TEXT), MAX_BYTES)

    with pytest.raises(Unavailable, match="run-1"):
        await LargeValues().resolve(StoredArtifacts([]), "acme", "run-1", stored["outputs"])


def test_a_document_with_many_elements_needs_more_memory_than_a_text_of_its_size() -> None:
    many = msgspec.json.encode([{} for _ in range(2000)])

    assert memory_of(many) > memory_of(msgspec.json.encode("x" * len(many)))
