"""Columns and the values that they become: each list of names stands beside what reads it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wopr.store.port import (
    AgentRow,
    Artifact,
    Invocation,
    KeyRow,
    MemoryRow,
    RememberedAnswer,
    RunRow,
    Suspension,
    WorkflowRow,
)
from wopr.store.sql.dialect import Parameter, Row

_texts = msgspec.json.Decoder(tuple[str, ...])
_types = msgspec.json.Decoder(dict[str, str])

RUN_COLUMNS = (
    "r.run_id, r.workflow_id, r.workflow_version, r.status, r.created_at, r.updated_at, "
    "r.last_sequence, r.ended_at, r.wake_at, r.parent_run_id, r.parent_node_id, r.tags, "
    "r.wish, r.sealed, r.snapshot, r.source_run_id, r.fork, r.missing_types, "
    "r.root_run_id, r.descendants, r.crashes, r.quarantined_at"
)
# The same for lists, which show no snapshots: each can have megabytes.
LISTED_COLUMNS = RUN_COLUMNS.replace("r.snapshot", "NULL AS snapshot")


def run_row(row: Row) -> RunRow:
    """Name the columns of `RUN_COLUMNS`."""
    return RunRow(
        run_id=row[0],
        workflow_id=row[1],
        workflow_version=row[2],
        status=row[3],
        created_at=row[4],
        updated_at=row[5],
        last_sequence=row[6],
        ended_at=row[7],
        wake_at=row[8],
        parent_run_id=row[9],
        parent_node_id=row[10],
        tags=texts(row[11]),
        wish=row[12],
        sealed=row[13],
        snapshot=row[14],
        source_run_id=row[15],
        fork=row[16],
        missing_types={} if row[17] is None else _types.decode(row[17]),
        root_run_id=row[18],
        descendants=row[19],
        crashes=row[20],
        quarantined_at=row[21],
    )


def texts(encoded: bytes | None) -> tuple[str, ...]:
    """Tags and other names as they lie in a column; None where there are none."""
    return () if encoded is None else _texts.decode(encoded)


def encoded(names: tuple[str, ...] | Mapping[str, str]) -> bytes | None:
    """Names as they lie in a column; None where there are none."""
    return msgspec.json.encode(names) if names else None


ARTIFACT_COLUMNS = "a.artifact_id, a.node_id, a.artifact_type, a.created_at, a.body"


def artifact_row(row: Row) -> Artifact:
    """Name the columns of `ARTIFACT_COLUMNS`."""
    return Artifact(
        artifact_id=row[0], node_id=row[1], artifact_type=row[2], created_at=row[3], body=row[4]
    )


SUSPENSION_COLUMNS = (
    "interrupt_id, run_id, node_id, workflow_id, kind, created_at, expires_at, body, place"
)


def suspension_row(row: Row) -> Suspension:
    """Name the columns of `SUSPENSION_COLUMNS`, without the place that they are sorted by."""
    return Suspension(
        interrupt_id=row[0],
        run_id=row[1],
        node_id=row[2],
        workflow_id=row[3],
        kind=row[4],
        created_at=row[5],
        expires_at=row[6],
        body=row[7],
    )


def suspension_place(suspension: Suspension) -> str:
    """The run and the interrupt in one text, the second half of a page's key."""
    return f"{suspension.run_id}/{suspension.interrupt_id}"


WORKFLOW_COLUMNS = "w.workflow_id, w.version, w.digest, w.body, w.registered_at"


def workflow_row(row: Row) -> WorkflowRow:
    """Name the columns of `WORKFLOW_COLUMNS`."""
    return WorkflowRow(
        workflow_id=row[0], version=row[1], digest=row[2], body=row[3], registered_at=row[4]
    )


AGENT_COLUMNS = "a.agent_id, a.version, a.digest, a.body, a.registered_at, a.place"


def agent_row(row: Row) -> AgentRow:
    """Name the columns of `AGENT_COLUMNS`."""
    return AgentRow(
        agent_id=row[0],
        version=row[1],
        digest=row[2],
        body=row[3],
        registered_at=row[4],
        place=row[5],
    )


MEMORY_COLUMNS = (
    "m.memory_ref, m.memory_id, m.content, m.tags, m.created_at, m.expires_at, m.run_id, m.place"
)


def memory_row(row: Row) -> MemoryRow:
    """Name the columns of `MEMORY_COLUMNS`, without the place that they are sorted by."""
    return MemoryRow(
        memory_ref=row[0],
        memory_id=row[1],
        content=row[2],
        tags=texts(row[3]),
        created_at=row[4],
        expires_at=row[5],
        run_id=row[6],
    )


KEY_COLUMNS = (
    "key_id, tenant, name, role, scopes, key_hash, created_at, is_test, "
    "expires_at, revoked_at, replaced_by"
)


def key_row(row: Row) -> KeyRow:
    """Name the columns of `KEY_COLUMNS`."""
    return KeyRow(
        key_id=row[0],
        tenant=row[1],
        name=row[2],
        role=row[3],
        scopes=texts(row[4]),
        key_hash=row[5],
        created_at=row[6],
        is_test=bool(row[7]),
        expires_at=row[8],
        revoked_at=row[9],
        replaced_by=row[10],
    )


def key_values(row: KeyRow) -> tuple[Parameter, ...]:
    """The values of `KEY_COLUMNS`."""
    return (
        row.key_id,
        row.tenant,
        row.name,
        row.role,
        msgspec.json.encode(row.scopes),
        row.key_hash,
        row.created_at,
        row.is_test,
        row.expires_at,
        row.revoked_at,
        row.replaced_by,
    )


ANSWER_COLUMNS = "key_hash, request_digest, status, body, created_at"


def answer_row(row: Row) -> RememberedAnswer:
    """Name the columns of `ANSWER_COLUMNS`."""
    return RememberedAnswer(
        key_hash=row[0], request_digest=row[1], status=row[2], body=row[3], created_at=row[4]
    )


def answer_values(
    tenant: str, answer: RememberedAnswer
) -> tuple[str, bytes, bytes, int, bytes, int]:
    """The tenant, and the values of `ANSWER_COLUMNS`."""
    return (
        tenant,
        answer.key_hash,
        answer.request_digest,
        answer.status,
        answer.body,
        answer.created_at,
    )


INVOCATION_COLUMNS = "invocation_id, run_id, state, claimed_at, outcome"


def invocation_row(row: Row) -> Invocation:
    """Name the columns of `INVOCATION_COLUMNS`."""
    return Invocation(
        invocation_id=row[0], run_id=row[1], state=row[2], claimed_at=row[3], outcome=row[4]
    )


def invocation_values(tenant: str, invocation: Invocation) -> tuple[Parameter, ...]:
    """The tenant, and the values of `INVOCATION_COLUMNS`."""
    return (
        tenant,
        invocation.invocation_id,
        invocation.run_id,
        invocation.state,
        invocation.claimed_at,
        invocation.outcome,
    )
