"""Runs: their rows, their append-only logs, and the batch that one step writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from wopr.protocol.errors import QuotaExceeded
from wopr.store.port.audit import AuditDraft
from wopr.store.port.feedback import AnnotationRow
from wopr.store.port.idempotency import IdempotencyRecord
from wopr.store.port.suspensions import Suspension
from wopr.store.port.webhooks import NewDeliveries


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """An event of a run's log as it is stored; every reader gets the bytes of `body`."""

    sequence: int
    type: str
    body: bytes


# The prefix of tool names in lists that also contain node types.
TOOL_PREFIX: Final = "tool:"


def code_of(type_id: str, tools: Iterable[str] = ()) -> str:
    """Return the code that a node needs, as one text: its type, then a line for each tool."""
    return "\n".join([type_id, *(f"{TOOL_PREFIX}{name}" for name in tools)])


def split_code(code: str) -> tuple[str, list[str]]:
    """Return the type and the tools in a text that `code_of` wrote."""
    type_id, *tools = code.split("\n")
    return type_id, [name.removeprefix(TOOL_PREFIX) for name in tools]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """The facts about a run that the host reads without its log.

    All fields except `pending_command` and `sealed` are derived from the log or fixed at creation.
    `snapshot` is the encoded RunSnapshot of a run that has ended. Before that it is None, except
    for an observed run, whose log cannot be folded without a workflow.

    Identity, workflow, parent, tags and `created_at` are fixed by the batch that creates the run.
    Only `set_pending_command`, `Batch.commands` and `Batch.completes_command` change
    `pending_command`. A run that has ended has no `wake_at`, `pending_command` and `sealed`, even
    if the row given to `append` has them.
    """

    run_id: str
    workflow_id: str
    workflow_version: str
    status: str
    created_at: int
    updated_at: int
    last_sequence: int
    ended_at: int | None = None
    wake_at: int | None = None
    parent_run_id: str | None = None
    parent_node_id: str | None = None
    tags: tuple[str, ...] = ()
    # A pending command for the process that advances the run, such as a pause.
    pending_command: bytes | None = None
    # Encrypted values that are masked in the log; deleted when the run ends.
    sealed: bytes | None = None
    snapshot: bytes | None = None
    # The run that this one descends from, through parents and fork sources; None for a root. Fixed
    # at creation. The store counts `descendants` for a root; no writer changes it.
    root_run_id: str | None = None
    descendants: int = 0
    # How often a process died while it recovered this run, and when the run was put in quarantine.
    # Only `Recovery` changes them.
    crashes: int = 0
    quarantined_at: int | None = None
    # For a forked run: its source, and the document that describes the fork.
    source_run_id: str | None = None
    fork: bytes | None = None
    # Where several processes share the store: the process that executes the run's nodes, and how
    # often other processes have woken the run.
    holder: str | None = None
    wakes: int = 0
    # Nodes that are due and whose code the writer does not have: the code of each by node id, as
    # `code_of` writes it. The run waits for a process that has all the code of one of these nodes.
    # `Batch.missing_types` changes it.
    missing_types: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run's row and the beginning of its log. The log may be newer than the row."""

    row: RunRow
    events: Sequence[StoredEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A document that a run produced."""

    artifact_id: str
    node_id: str
    artifact_type: str
    created_at: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommand:
    """A command for another run, which is woken to execute it."""

    run_id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The process that writes a batch, and whether it executes nodes of the run from then on.

    Only one process at a time executes nodes of a run. When another process holds the run, the
    append returns False and the other process is woken. With `is_fence` the batch comes from a node
    in flight, and is refused with `LeaseLost` unless its process still holds the run.
    """

    process: str
    keeps: bool
    is_fence: bool = False


def too_many_active_error(limit: int, current: int) -> QuotaExceeded:
    """Return the error for a tenant with too many active runs."""
    return QuotaExceeded(
        "activeRuns",
        limit=limit,
        current=current,
        remedy="Wait until runs have ended, or cancel runs.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationLimits:
    """Limits that are checked when a run is created; 0 means no limit.

    `active_runs` counts the runs of the tenant that have not ended, including the new run unless it
    ends with its first batch. `descendants` counts the runs with the same root.
    """

    active_runs: int = 0
    descendants: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All changes that one step of one run writes.

    `events` start at `first`; the run's log must have exactly the sequences below it, or the
    append fails with `SequenceTaken`. A batch with `first == 0` creates the run. `run` is the
    row after the events. `wakes` and `commands` are for other runs of the tenant: a wake sets their
    `wake_at` to `run.updated_at`, a command also stores its body. Both skip runs that have ended,
    and both are applied after the rows of all batches of the call. Of two artifacts of one run with
    the same id, the later one is stored.

    `run.pending_command` is stored when the batch creates the run. After that it is the pending
    command that the writer knows. With `completes_command` the events complete the command, and the
    store removes it. If the stored command differs, another process has stored it since. Then it
    stays, and `wake_at` becomes the earlier of the stored time and `run.wake_at`, so that its
    wake-up stays too.

    `suspends` are the interrupts that this batch opens; an interrupt replaces a pending one with
    the same id. `resumes` are the ids of this run's interrupts that are no longer pending. A run
    that ends has no pending interrupts.

    `deliveries` queue events of this batch for webhooks. Those for a subscription that is deleted,
    failed or of another tenant are skipped. `audits` are written to the audit log, and
    `annotations` are stored and counted. `agents` are agents that took part in the run, and with
    `is_intervention` the batch has a person's response: both are counted. With `projects` the run
    is queued for projection to the fleet.

    Where several processes share the store, `claim` names the process, and `run.wakes` is the last
    wake-up that the writer acted on: after a later one `wake_at` stays, as for a pending command.
    `is_urgent` gives its wake-ups priority.

    `limits` are checked when the batch creates the run. A run beyond them refuses the whole call
    with `QuotaExceeded` or `DescendantLimit`.

    `missing_types` replaces the value in the row; None leaves it unchanged. It stays empty for a
    run that another process holds, because that process executes the nodes.
    """

    run: RunRow
    first: int
    events: tuple[StoredEvent, ...] = ()
    wakes: tuple[str, ...] = ()
    commands: tuple[PendingCommand, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    idempotency: IdempotencyRecord | None = None
    completes_command: bool = False
    suspends: tuple[Suspension, ...] = ()
    resumes: tuple[str, ...] = ()
    deliveries: tuple[NewDeliveries, ...] = ()
    audits: tuple[AuditDraft, ...] = ()
    claim: Claim | None = None
    is_urgent: bool = False
    annotations: tuple[AnnotationRow, ...] = ()
    agents: tuple[str, ...] = ()
    is_intervention: bool = False
    projects: bool = False
    missing_types: Mapping[str, str] | None = None
    limits: CreationLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list; an absent field does not filter. `created_before` is exclusive.

    `label` is the text of a label annotation on the run.
    """

    statuses: tuple[str, ...] = ()
    workflow_id: str | None = None
    tag: str | None = None
    parent_run_id: str | None = None
    source_run_id: str | None = None
    created_from: int | None = None
    created_before: int | None = None
    flagged: bool | None = None
    rated: bool | None = None
    corrected: bool | None = None
    label: str | None = None
    waits_for_code: bool = False
    quarantined: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A page of runs, newest first, without their snapshots, which can have megabytes.

    The next page starts after `next_after`, a `(created_at, run_id)`; None at the end.
    """

    runs: tuple[RunRow, ...]
    next_after: tuple[int, str] | None


class RunLog(Protocol):
    """Runs and their append-only logs."""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none, durably; False when another process holds a claimed run.

        Raises `SequenceTaken` when a log has events that the writer does not know, and `Conflict`
        with code `idempotency_in_flight` when a response is already stored under the same key.
        Raises `QuotaExceeded` and `DescendantLimit` for a new run beyond the limits of its batch.
        """
        ...

    async def read(
        self,
        tenant: str,
        run_id: str,
        start: int = 0,
        limit: int = 100,
        *,
        most_bytes: int | None = None,
    ) -> list[StoredEvent]:
        """Read events from `start` on, in order; none for an unknown run or one of another tenant.

        With `most_bytes` the list ends with the event at which the bodies reach that size.
        """
        ...

    async def event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent | None:
        """Return the event with that id, or None. It reads only the log of this run."""
        ...

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """Return the run's row, or None for an unknown run, or a run of another tenant."""
        ...

    async def load_runs(
        self, tenant: str, run_ids: Sequence[str], most_events: int
    ) -> list[StoredRun]:
        """Return runs of the tenant, each with up to `most_events` events from the first on.

        Unknown runs, and runs of other tenants, are left out. The order is not defined.
        """
        ...

    async def runs(
        self, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
    ) -> RunPage:
        """List a page of runs, newest first, by keyset."""
        ...

    async def set_pending_command(self, tenant: str, run_id: str, body: bytes, now: int) -> bool:
        """Store a command for an unfinished run and wake the run.

        False when there is no such run, or another command is already pending.
        """
        ...

    async def active_runs(self, tenant: str) -> int:
        """Return how many runs of the tenant have not ended, without observed runs.

        The number is a counter, so the cost does not depend on it.
        """
        ...

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """Return an artifact of the run, or None."""
        ...

    async def is_expired(self, tenant: str, run_id: str) -> bool:
        """Return whether retention deleted this run of the tenant."""
        ...
