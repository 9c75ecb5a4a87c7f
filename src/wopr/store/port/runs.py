"""What is kept of runs: their rows, their append-only logs, and what one step writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from wopr.protocol.errors import QuotaExceeded
from wopr.store.port.answers import RememberedAnswer
from wopr.store.port.audit import AuditDraft
from wopr.store.port.feedback import AnnotationRow
from wopr.store.port.suspensions import Suspension
from wopr.store.port.webhooks import Notice

# A run whose id begins so was observed: the fleet says how long it is kept.
OBSERVED_PREFIX: Final = "kahn-"


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """One line of a run's log as it lies on disk; `body` is what every reader gets."""

    sequence: int
    type: str
    body: bytes


# How the names of tools begin where they stand beside node types.
TOOL_PREFIX: Final = "tool:"


def code_of(type_id: str, tools: Iterable[str] = ()) -> str:
    """The code that a node needs, in one text: its type, then a line for each tool of an app."""
    return "\n".join([type_id, *(f"{TOOL_PREFIX}{name}" for name in tools)])


def split_code(code: str) -> tuple[str, list[str]]:
    """The type and the tools in a text that `code_of` wrote."""
    type_id, *tools = code.split("\n")
    return type_id, [name.removeprefix(TOOL_PREFIX) for name in tools]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What the host must find about a run without reading its log.

    Everything here except `wish` and `sealed` is derived from the log or fixed at creation.
    `snapshot` is the encoded RunSnapshot of a run that has ended; until then it is None, unless the
    run was observed: nobody can fold its log without a workflow.

    Identity, workflow, parent, tags and `created_at` are fixed by the batch that creates the run.
    `wish` is changed by `set_wish`, `Batch.wishes` and `Batch.grants` only. A run that has ended has
    no `wake_at`, no `wish` and nothing `sealed`, whatever the row given to `append` says.
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
    # A command that waits for the run's own writer, such as a pause that drains first.
    wish: bytes | None = None
    # Encrypted values that the log holds only in masked form; dropped when the run ends.
    sealed: bytes | None = None
    snapshot: bytes | None = None
    # The run that this one descends from, through parents and fork sources; None for a root. Fixed
    # at creation. `descendants` is what the store has counted for a root; no writer changes it.
    root_run_id: str | None = None
    descendants: int = 0
    # How often a process died while it recovered this run, and since when the run is in quarantine.
    # `Recovery` changes both; no writer does.
    crashes: int = 0
    quarantined_at: int | None = None
    # For a forked run: where it comes from, and the document that says how.
    source_run_id: str | None = None
    fork: bytes | None = None
    # Where several processes share the store: who executes the run's nodes, and how often somebody
    # else has woken it.
    holder: str | None = None
    wakes: int = 0
    # Nodes that are due and that the writer has no code for: node id to the code that the node
    # needs, as `code_of` writes it. The run waits for a process that has all the code of one of
    # these nodes. `Batch.missing_types` changes it.
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
class Wish:
    """A command left for another run, with the wake-up that will carry it out."""

    run_id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who writes a batch, and whether that process executes nodes of the run from then on.

    Only one process at a time does. One that claims what another has is told so, and the other
    is woken. With `is_fence` the batch comes from a node in flight, and is refused with `HoldLost`
    unless its process still has the run.
    """

    process: str
    keeps: bool
    is_fence: bool = False


def too_many_active(limit: int, current: int) -> QuotaExceeded:
    """The refusal of one more active run."""
    return QuotaExceeded(
        "activeRuns",
        limit=limit,
        current=current,
        way_out="Wait until runs have ended, or cancel runs.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationLimits:
    """What a new run must fit into; 0 is no limit.

    `active_runs` are the runs of the tenant that have not ended, this one included unless it ends
    with its first batch. `descendants` are the runs that have the same root.
    """

    active_runs: int = 0
    descendants: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All that one step of one run writes.

    `events` start at `first`; the run's log must hold exactly the sequences below it, or the
    append fails with `SequenceTaken`. A batch with `first == 0` creates the run. `run` is the
    row as it stands after the events. `wakes` and `wishes` concern other runs of the tenant: a
    wake sets their `wake_at` to `run.updated_at`, a wish also stores its body; both skip runs
    that have ended, and both come after the rows of all batches of the call. Two artifacts of one
    run with the same id: the later holds.

    `run.wish` is taken when the batch creates the run. After that it is the wish that the writer
    knows of, and with `grants` the events carry it out, so that it is taken away. A stored wish that
    differs was left by another command since: it is kept, and `wake_at` becomes the earlier of the
    stored one and `run.wake_at`, so that its wake-up is kept too.

    `suspends` are the interrupts that this batch opens; one with an id that is pending already
    takes its place. `resumes` are the ids of this run's interrupts that are pending no longer,
    whichever way they ended. A run that ends has none pending, named here or not.

    `notices` queue events of this batch for webhooks; one whose subscription is gone, failed or
    another tenant's is left out. `audits` are written to the audit log with the events, and
    `annotations` are kept of the run and counted. `agents` took part in the run, and with
    `is_intervention` the batch holds a person's answer: both are counted. With `projects` the run is
    put among those that the fleet is to be told of.

    Where several processes share the store, `claim` says who has the run, and `run.wakes` up to
    which wake-up of others its writer has acted: after a later one `wake_at` is kept as for a wish.
    `is_urgent` lets its wake-ups overtake others.

    `limits` are checked when the batch creates the run. A run beyond them is refused with
    `QuotaExceeded` or `DescendantLimit`, and so is the whole call.

    `missing_types` replaces what the row says of them; None leaves it as it is. A run that another
    process holds has none: that process calls its nodes.
    """

    run: RunRow
    first: int
    events: tuple[StoredEvent, ...] = ()
    wakes: tuple[str, ...] = ()
    wishes: tuple[Wish, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    remember: RememberedAnswer | None = None
    grants: bool = False
    suspends: tuple[Suspension, ...] = ()
    resumes: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
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
    """Newest first. `next_after` is the `(created_at, run_id)` to go on from, or None at the end.

    The rows have no `snapshot`: each can have megabytes.
    """

    runs: tuple[RunRow, ...]
    next_after: tuple[int, str] | None


class RunLog(Protocol):
    """Runs and their append-only logs."""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> bool:
        """Write every batch or none, durably; False when another process has a run that is claimed.

        Raises `SequenceTaken` when a log has moved on, and `Conflict` with code
        `idempotency_in_flight` when an answer is already remembered under the same key. Raises
        `QuotaExceeded` and `DescendantLimit` for a new run beyond the limits of its batch.
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
        """Events from `start` on, in order; empty for an unknown or a foreign run.

        With `most_bytes` the last event is the one that brings the bodies to that size.
        """
        ...

    async def event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent | None:
        """The event with that id, or None. Costs at most a walk over the run's own log."""
        ...

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """The run's row, or None for an unknown or a foreign run."""
        ...

    async def load(self, tenant: str, run_ids: Sequence[str], most_events: int) -> list[StoredRun]:
        """Runs of the tenant, each with up to `most_events` events from the first on.

        Unknown and foreign runs are left out. The order is the store's own.
        """
        ...

    async def runs(
        self, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
    ) -> RunPage:
        """A page of runs, newest first, by keyset."""
        ...

    async def set_wish(self, tenant: str, run_id: str, body: bytes, now: int) -> bool:
        """Leave a wish on an unfinished run and wake it.

        False when there is no such run, or another wish waits on it already.
        """
        ...

    async def active_runs(self, tenant: str) -> int:
        """How many runs of the tenant have not ended, observed runs not included.

        The number is kept with the runs and costs the same however many there are.
        """
        ...

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """An artifact of the run, or None."""
        ...

    async def expired(self, tenant: str, run_id: str) -> bool:
        """Whether retention removed this run of the tenant."""
        ...
