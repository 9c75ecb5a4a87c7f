"""Memory and workspace: identifiers and counts, never content."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, NonEmpty, Unset
from wopr.protocol.payloads.values import Count, Ordinal


class Distillation(Closed, frozen=True, kw_only=True):
    """How many tokens a compaction had and used."""

    token_budget: Ordinal
    tokens_used: Count
    index_updated: bool | Unset = UNSET


class MemoryCompacted(Document, frozen=True, kw_only=True):
    """Several memories became one."""

    memory_ref: NonEmpty
    output_id: NonEmpty
    source_count: Ordinal
    trigger: Literal["host-managed", "client-requested", "both"]
    byte_size: Count
    source_ids: list[NonEmpty] | Unset = UNSET
    distillation: Distillation | Unset = UNSET


class MemoryWritten(Document, frozen=True, kw_only=True):
    """A memory was written; a replay repeats the fact and not the write."""

    memory_ref: NonEmpty
    memory_id: NonEmpty
    node_id: NonEmpty | Unset = UNSET
    agent_id: NonEmpty | Unset = UNSET
    tags: list[str] | Unset = UNSET


class AgentMemoryConsolidated(Document, frozen=True, kw_only=True):
    """An agent's memory was tidied."""

    memory_ref: NonEmpty
    input_count: Count
    output_count: Count
    merged_ids: list[NonEmpty] | Unset = UNSET
    trigger: Literal["host-managed", "scheduled", "on-demand"] | Unset = UNSET


class CommitmentFired(Document, frozen=True, kw_only=True):
    """Something an agent had promised came due."""

    commitment_id: NonEmpty
    memory_ref: NonEmpty
    condition: Literal["time", "predicate"]
    memory_id: NonEmpty | Unset = UNSET
    enqueued_run_id: NonEmpty | Unset = UNSET


class WorkspaceUpdated(Closed, frozen=True, kw_only=True):
    """A workspace file has a new version."""

    path: NonEmpty
    version: Ordinal


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "memory.compacted": MemoryCompacted,
    "memory.written": MemoryWritten,
    "agent.memory.consolidated": AgentMemoryConsolidated,
    "commitment.fired": CommitmentFired,
    "workspace.updated": WorkspaceUpdated,
}
