from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wopr.store.port import (
    AgentRow,
    Artifact,
    Batch,
    IdempotencyRecord,
    Invocation,
    KeyRow,
    MemoryRow,
    RunRow,
    Store,
    StoredEvent,
    Suspension,
    WorkflowRow,
)

T0 = 1_700_000_000_000
TENANT = "acme"
OTHER = "umbrella"


def run(run_id: str = "run-1", last: int = 0, **changes: object) -> RunRow:
    fields: dict[str, object] = {
        "workflow_id": "greet",
        "workflow_version": "1",
        "status": "running",
        "created_at": T0,
        "updated_at": T0,
    }
    return RunRow(run_id=run_id, last_sequence=last, **{**fields, **changes})  # type: ignore[arg-type]  # tests name the fields they change


def events(first: int, count: int, mark: str = "") -> tuple[StoredEvent, ...]:
    return tuple(
        StoredEvent(sequence=n, type="node.completed", body=f"{mark}{n}".encode())
        for n in range(first, first + count)
    )


def batch(
    run_id: str = "run-1",
    first: int = 0,
    count: int = 1,
    *,
    mark: str = "",
    wakes: Sequence[str] = (),
    artifacts: Sequence[Artifact] = (),
    idempotency: IdempotencyRecord | None = None,
    **changes: object,
) -> Batch:
    return Batch(
        run=run(run_id, first + count - 1, **changes),
        first=first,
        events=events(first, count, mark),
        wakes=tuple(wakes),
        artifacts=tuple(artifacts),
        idempotency=idempotency,
    )


def ended(run_id: str = "run-1", first: int = 1, at: int = T0 + 5, **changes: object) -> Batch:
    return batch(run_id, first, status="completed", ended_at=at, snapshot=b"{}", **changes)  # type: ignore[arg-type]  # see run()


def artifact(artifact_id: str = "a-1", body: bytes = b"text") -> Artifact:
    return Artifact(
        artifact_id=artifact_id, node_id="n", artifact_type="report", created_at=T0, body=body
    )


def suspension(
    interrupt_id: str = "int-1", run_id: str = "run-1", at: int = T0, **changes: object
) -> Suspension:
    fields: dict[str, object] = {
        "node_id": "gate",
        "workflow_id": "greet",
        "kind": "approval",
        "body": b"{}",
    }
    return Suspension(
        interrupt_id=interrupt_id,
        run_id=run_id,
        created_at=at,
        **{**fields, **changes},  # type: ignore[arg-type]  # tests name the fields they change
    )


def suspending(*suspensions: Suspension, first: int = 0, resumes: Sequence[str] = ()) -> Batch:
    """Return a batch that opens suspensions."""
    step = batch(suspensions[0].run_id if suspensions else "run-1", first)
    return replace(step, suspends=suspensions, resumes=tuple(resumes))


def answer(key: bytes = b"k", body: bytes = b"{}", at: int = T0) -> IdempotencyRecord:
    return IdempotencyRecord(
        key_hash=key, request_digest=b"d", status=201, body=body, created_at=at
    )


def workflow(
    workflow_id: str = "greet", version: str = "1", body: bytes = b"{}", at: int = T0
) -> WorkflowRow:
    return WorkflowRow(
        workflow_id=workflow_id, version=version, digest=b"#" + body, body=body, registered_at=at
    )


def agent(
    agent_id: str = "local.acme.writer", version: str = "1", body: bytes = b"{}", at: int = T0
) -> AgentRow:
    return AgentRow(
        agent_id=agent_id, version=version, digest=b"#" + body, body=body, registered_at=at
    )


def memory(
    memory_id: str = "m-1", ref: str = "notes", at: int = T0, **changes: object
) -> MemoryRow:
    fields: dict[str, object] = {"content": "text", "run_id": "run-1", **changes}
    return MemoryRow(memory_ref=ref, memory_id=memory_id, created_at=at, **fields)  # type: ignore[arg-type]  # see run()


def key(key_id: str = "key-1", tenant: str = TENANT, at: int = T0) -> KeyRow:
    return KeyRow(
        key_id=key_id,
        tenant=tenant,
        name="ci",
        role="operator",
        scopes=("runs:read", "runs:write"),
        key_hash=b"hash of " + key_id.encode(),
        created_at=at,
    )


def invocation(invocation_id: str = "i-1", run_id: str = "run-1", at: int = T0) -> Invocation:
    return Invocation(invocation_id=invocation_id, run_id=run_id, state="claimed", claimed_at=at)


async def log(store: Store, run_id: str = "run-1", tenant: str = TENANT) -> list[bytes]:
    return [event.body for event in await store.read(tenant, run_id, limit=1000)]


async def found(store: Store, run_id: str = "run-1", tenant: str = TENANT) -> RunRow:
    row = await store.run(tenant, run_id)
    assert row is not None
    return row
