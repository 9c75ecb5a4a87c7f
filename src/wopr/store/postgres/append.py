"""Batches as the database's `append` function takes them: a document, and bytes beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec

from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import HoldLost, SequenceTaken
from wopr.store.port import Batch, RunRow
from wopr.store.postgres.schema_peers import HORIZON_MS
from wopr.store.postgres.texts import escaped_json
from wopr.store.sql.batches import in_flight
from wopr.store.sql.rows import encoded, suspension_place

APPEND = "SELECT signed_append(%s, %s::jsonb, %b::bytea[], %b::text[])"
APPEND_EACH = "SELECT signed_append_each(%b::text[], %b::text[], %b::bytea[], %b::bigint[])"

# People's answers overtake what nobody waits for.
URGENT = 10

_RUN_TEXTS = (
    "run_id",
    "workflow_id",
    "workflow_version",
    "status",
    "created_at",
    "updated_at",
    "last_sequence",
    "ended_at",
    "wake_at",
    "parent_run_id",
    "parent_node_id",
    "source_run_id",
    "root_run_id",
    "wakes",
)
# How JSON spells the characters that `texts` is about.
_ESCAPES = (rb"\u0000", rb"\u001a")
_RUN_BLOBS = ("wish", "sealed", "snapshot", "fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class Appending:
    """One call of `append`, ready to be sent."""

    tenant: str
    document: str
    blobs: list[bytes]
    locks: list[str] | None
    run_id: str

    def values(self, token: str) -> tuple[str, str, list[bytes], list[str] | None]:
        """The parameters of `APPEND`, with the tenant's token for the connection that is used."""
        return (token, self.document, self.blobs, self.locks)


class _Blobs(list[bytes]):
    """Bytes, and their numbers as the database counts them."""

    def put(self, body: bytes) -> int:
        self.append(body)
        return len(self)


def appending(tenant: str, batches: Sequence[Batch]) -> Appending:
    """Write a call down."""
    blobs = _Blobs()
    steps = [_step(batch, blobs) for batch in batches]
    # One run needs no order; its row is locked when it is changed.
    runs = {batch.run.run_id for batch in batches}
    for batch in batches:
        runs.update(batch.wakes, (wish.run_id for wish in batch.wishes))
        if batch.first == 0 and batch.run.root_run_id is not None:
            runs.add(batch.run.root_run_id)
    return Appending(
        tenant=tenant,
        document=_document(steps),
        blobs=blobs,
        locks=sorted(runs) if len(runs) > 1 else None,
        run_id=batches[0].run.run_id if batches else "",
    )


def is_held_here(answer: str, run_id: str) -> bool:
    """What the function's answer means: written, and whether the claim holds; else it is raised."""
    if answer in ("ok", "held"):
        return answer == "ok"
    if answer == "answered":
        raise in_flight()
    if answer == "lost":
        raise HoldLost("another process has the run", runId=run_id)
    if answer == "exists":
        raise SequenceTaken("the run exists already", runId=run_id)
    raise SequenceTaken("the run's log has moved on", runId=run_id)


def _document(steps: list[JsonObject]) -> str:
    document = msgspec.json.encode(steps)
    if any(escape in document for escape in _ESCAPES):
        document = msgspec.json.encode([escaped_json(step) for step in steps])
    return document.decode()


def _step(batch: Batch, blobs: _Blobs) -> JsonObject:
    step: JsonObject = {"run": _run(batch.run, blobs), "first": batch.first}
    if batch.first == 0 and batch.run.tags:
        step["tag_names"] = list(batch.run.tags)
    if batch.limits is not None and batch.limits.active_runs:
        step["most_active"] = batch.limits.active_runs
    if batch.limits is not None and batch.limits.descendants:
        step["most_descendants"] = batch.limits.descendants
    if batch.grants:
        step["grants"] = True
    if batch.claim is not None:
        step["claim"] = asdict(batch.claim)
    if batch.events:
        step["types"] = [event.type for event in batch.events]
        step["bodies"] = len(blobs) + 1
        blobs += [event.body for event in batch.events]
    if batch.projects:
        step["projects"] = True
    if batch.notices:
        step["notices"] = [
            {"webhook_id": notice.webhook_id, "sequences": list(notice.sequences)}
            for notice in batch.notices
        ]
    _add_answer(step, batch, blobs)
    _add_artifacts(step, batch, blobs)
    _add_suspensions(step, batch, blobs)
    _add_wakes(step, batch, blobs)
    _add_job(step, batch)
    return step


def _run(run: RunRow, blobs: _Blobs) -> JsonObject:
    document: JsonObject = {
        name: value for name in _RUN_TEXTS if (value := getattr(run, name)) is not None
    }
    for name in _RUN_BLOBS:
        if (body := getattr(run, name)) is not None:
            document[name] = blobs.put(body)
    if (tags := encoded(run.tags)) is not None:
        document["tags"] = blobs.put(tags)
    return document


def _add_answer(step: JsonObject, batch: Batch, blobs: _Blobs) -> None:
    answer = batch.remember
    if answer is not None:
        step["answer"] = {
            "key_hash": blobs.put(answer.key_hash),
            "request_digest": blobs.put(answer.request_digest),
            "status": answer.status,
            "body": blobs.put(answer.body),
            "created_at": answer.created_at,
        }


def _add_artifacts(step: JsonObject, batch: Batch, blobs: _Blobs) -> None:
    if batch.artifacts:
        # The later one holds: a statement cannot write the same row twice.
        latest = {artifact.artifact_id: artifact for artifact in batch.artifacts}
        step["artifacts"] = [
            {
                "artifact_id": artifact.artifact_id,
                "node_id": artifact.node_id,
                "artifact_type": artifact.artifact_type,
                "created_at": artifact.created_at,
                "body": blobs.put(artifact.body),
            }
            for artifact in latest.values()
        ]


def _add_suspensions(step: JsonObject, batch: Batch, blobs: _Blobs) -> None:
    if batch.suspends:
        latest = {suspension.interrupt_id: suspension for suspension in batch.suspends}
        step["suspends"] = [
            {
                "interrupt_id": suspension.interrupt_id,
                "place": suspension_place(suspension),
                "node_id": suspension.node_id,
                "workflow_id": suspension.workflow_id,
                "kind": suspension.kind,
                "created_at": suspension.created_at,
                "expires_at": suspension.expires_at,
                "body": blobs.put(suspension.body),
            }
            for suspension in latest.values()
        ]
    if batch.resumes:
        step["resumes"] = list(batch.resumes)


def _add_wakes(step: JsonObject, batch: Batch, blobs: _Blobs) -> None:
    if batch.wakes:
        step["wakes"] = list(batch.wakes)
    if batch.wishes:
        latest = {wish.run_id: wish for wish in batch.wishes}
        step["wishes"] = [
            {"run_id": wish.run_id, "body": blobs.put(wish.body)} for wish in latest.values()
        ]


def _add_job(step: JsonObject, batch: Batch) -> None:
    """Say how urgent wake-ups of this batch are, and when its own run's is, if that is soon.

    A run that no process holds and that is due later needs no job: processes take it from its row.
    """
    run = batch.run
    if batch.is_urgent:
        step["urgency"] = URGENT
    if run.wake_at is None or run.ended_at is not None:
        return
    # By the writer's own clock: what the database's says does not matter.
    delay = run.wake_at - run.updated_at
    is_held = batch.claim is not None and batch.claim.keeps
    if delay <= 0 or (is_held and delay <= HORIZON_MS):
        step["delay"] = max(delay, 0)
