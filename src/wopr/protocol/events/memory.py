"""Payloads of memory and workspace events: identifiers and counts, and no content."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, NonEmpty, Unset
from wopr.protocol.events.values import Count, Ordinal


class Distillation(Closed, frozen=True, kw_only=True):
    """Token counts of a compaction."""

    token_budget: Ordinal
    tokens_used: Count
    index_updated: bool | Unset = UNSET


class MemoryCompacted(Document, frozen=True, kw_only=True):
    """Several memory entries were compacted into one."""

    memory_ref: NonEmpty
    output_id: NonEmpty
    source_count: Ordinal
    trigger: Literal["host-managed", "client-requested", "both"]
    byte_size: Count
    source_ids: list[NonEmpty] | Unset = UNSET
    distillation: Distillation | Unset = UNSET


class MemoryWritten(Document, frozen=True, kw_only=True):
    """A memory entry was written. A replay repeats the event and not the write."""

    memory_ref: NonEmpty
    memory_id: NonEmpty
    node_id: NonEmpty | Unset = UNSET
    agent_id: NonEmpty | Unset = UNSET
    tags: list[str] | Unset = UNSET


class AgentMemoryConsolidated(Document, frozen=True, kw_only=True):
    """An agent's memory was consolidated."""

    memory_ref: NonEmpty
    input_count: Count
    output_count: Count
    merged_ids: list[NonEmpty] | Unset = UNSET
    trigger: Literal["host-managed", "scheduled", "on-demand"] | Unset = UNSET


class CommitmentFired(Document, frozen=True, kw_only=True):
    """A commitment of an agent is due."""

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
