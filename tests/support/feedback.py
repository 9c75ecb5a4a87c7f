"""Helpers for tests of feedback: annotations, live runs, and reading a stream up to a frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.client import Frame, Wire
from tests.support.definitions import delay, node, workflow
from wopr.protocol.documents import Json, JsonObject

FLAG: JsonObject = {"kind": "flag"}
CANARY = "sk-canary-rfc0056-do-not-leak-abc123"


def rating(stars: int) -> JsonObject:
    return {"kind": "rating", "rating": stars}


def path_of(run_id: str) -> str:
    return f"/v1/runs/{run_id}/annotations"


def annotate(wire: Wire, run_id: str, signal: JsonObject | None = None, **more: Json) -> JsonObject:
    """Annotate a run and return the stored annotation, validated by the published schema."""
    response = wire.post(path_of(run_id), {"signal": signal or FLAG, **more})
    assert response.status_code == 201, response.text
    stored: JsonObject = response.json()
    wire.recorder.check("annotation.schema.json", stored)
    return stored


def listed(wire: Wire, run_id: str) -> list[JsonObject]:
    """Return all annotations of a run, each validated by the published schema."""
    document = wire.document(path_of(run_id))
    assert document.keys() == {"annotations"}
    found: list[JsonObject] = document["annotations"]
    for each in found:
        wire.recorder.check("annotation.schema.json", each)
    return found


def finished_run(wire: Wire) -> str:
    """Run a workflow to its end and return the run's id."""
    return str(wire.run("conformance-noop")["runId"])


@contextmanager
def live_run(wire: Wire) -> Iterator[str]:
    """Start a run that lasts as long as the block."""
    workflow_id = wire.register(workflow([node("first"), delay("wait", 120_000)]))
    run_id = wire.create(workflow_id)
    wire.events_until(run_id, "node.completed")
    yield run_id
    wire.post(f"/v1/runs/{run_id}/cancel")


def until(frames: Iterator[Frame], event: str) -> list[Frame]:
    """Return the frames up to the first of this name."""
    found: list[Frame] = []
    for frame in (each for each in frames if not each.comment):
        found.append(frame)
        if frame.event == event:
            return found
    raise AssertionError([frame.event for frame in found])
