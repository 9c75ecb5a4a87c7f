"""The store's port: what the host needs kept, as small protocols that every adapter implements.

Every call names its tenant, and no call crosses one. The two exceptions are the host's own
clockwork (`due`, `unfinished`, `expire`): they answer with owners and ids only, never content.

Times are milliseconds since the epoch. Bodies are the exact bytes of the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

# The tenant of what every tenant can use: built-in definitions and those given at start.
SHARED: Final = "*"


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a run's log as it lies on disk; `body` is what every reader gets."""

    sequence: int
    type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What the host must find about a run without reading its log.

    Everything here except `wish` and `sealed` is derived from the log or fixed at creation.
    `snapshot` is the encoded RunSnapshot of a run that has ended; until then it is None.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A document that a run produced."""

    artifact_id: str
    node_id: str
    artifact_type: str
    created_at: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedAnswer:
    """The first answer to an idempotent request. `key_hash` already includes tenant and route."""

    key_hash: bytes
    request_digest: bytes
    status: int
    body: bytes
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A command left for another run, with the wake-up that will carry it out."""

    run_id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A pending interrupt of a run. `body` is the encoded document that an inbox shows.

    Only what is pending is kept: the log is the history.
    """

    interrupt_id: str
    run_id: str
    node_id: str
    workflow_id: str
    kind: str
    created_at: int
    expires_at: int | None = None
    body: bytes


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list; an absent field does not filter. `created_before` is exclusive."""

    statuses: tuple[str, ...] = ()
    workflow_id: str | None = None
    tag: str | None = None
    parent_run_id: str | None = None
    created_from: int | None = None
    created_before: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Newest first. `next_after` is the `(created_at, run_id)` to go on from, or None at the end."""

    runs: tuple[RunRow, ...]
    next_after: tuple[int, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionFilter:
    """Which pending interrupts to list; an absent field does not filter."""

    kinds: tuple[str, ...] = ()
    workflow_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionPage:
    """Newest first. `next_after` is the place to go on from, or None at the end."""

    suspensions: tuple[Suspension, ...]
    next_after: tuple[int, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRow:
    """A registered definition, byte for byte as it came. The newest `registered_at` runs by default."""

    workflow_id: str
    version: str
    digest: bytes
    body: bytes
    registered_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """An installed agent manifest, byte for byte as it came. `place` counts registrations."""

    agent_id: str
    version: str
    digest: bytes
    body: bytes
    registered_at: int
    # Given by the store; what reads the registrations in order goes on after it.
    place: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """An entry of an agent's long-term memory, and the run that wrote it."""

    memory_ref: str
    memory_id: str
    content: str
    created_at: int
    run_id: str
    tags: tuple[str, ...] = ()
    expires_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """An API key: never the key itself, only its hash."""

    key_id: str
    tenant: str
    name: str
    role: str
    scopes: tuple[str, ...]
    key_hash: bytes
    created_at: int
    is_test: bool = False
    expires_at: int | None = None
    revoked_at: int | None = None
    # Set on the old key of a rotation: it stays valid until `expires_at`.
    replaced_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A layer-2 record: the one outcome of one logical outside effect."""

    invocation_id: str
    run_id: str
    state: str  # "claimed", "succeeded" or "failed"
    claimed_at: int
    outcome: bytes | None = None


class RunLog(Protocol):
    """Runs and their append-only logs."""

    async def append(self, tenant: str, batches: Sequence[Batch]) -> None:
        """Write every batch or none, durably.

        Raises `SequenceTaken` when a log has moved on, and `Conflict` with code
        `idempotency_in_flight` when an answer is already remembered under the same key.
        """
        ...

    async def read(
        self, tenant: str, run_id: str, start: int = 0, limit: int = 100
    ) -> list[StoredEvent]:
        """Events from `start` on, in order; empty for an unknown or a foreign run."""
        ...

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """The run's row, or None for an unknown or a foreign run."""
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

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """An artifact of the run, or None."""
        ...


class Clockwork(Protocol):
    """What the host itself asks across tenants: owners and ids, no content."""

    async def due(self, now: int, limit: int) -> list[tuple[str, str]]:
        """`(tenant, run_id)` of unfinished runs whose `wake_at` has come, earliest first."""
        ...

    async def next_due(self, after: int) -> int | None:
        """The earliest `wake_at` of all unfinished runs that comes after this instant."""
        ...

    async def unfinished(self, after: tuple[str, str] | None, limit: int) -> list[tuple[str, str]]:
        """A page of `(tenant, run_id)` of all runs that have not ended, for recovery at start."""
        ...

    async def expire(self, ended_before: int, limit: int) -> int:
        """Delete up to `limit` runs that ended before then, with all that belongs to them."""
        ...

    async def forget(self, answers_before: int, invocations_before: int) -> None:
        """Drop idempotency records past their retention."""
        ...

    async def forget_memories(self, before: int) -> None:
        """Delete the memory entries that expired before then."""
        ...

    async def counts(self) -> dict[str, int]:
        """How many runs there are by status, over all tenants, for metrics."""
        ...


class Workflows(Protocol):
    """Registered definitions, by tenant."""

    async def put_workflow(self, tenant: str, row: WorkflowRow) -> bool:
        """Register; True when new, False when the same content is there already.

        Raises `Conflict` with code `workflow_exists` when this id and version hold other content.
        """
        ...

    async def workflow(
        self, tenant: str, workflow_id: str, version: str | None
    ) -> WorkflowRow | None:
        """The definition of that version, or the newest when `version` is None."""
        ...

    async def workflows(self, tenant: str, after: str | None, limit: int) -> list[WorkflowRow]:
        """The newest version of each definition, by id, after the given id."""
        ...

    async def workflow_versions(self, tenant: str, workflow_id: str) -> list[WorkflowRow]:
        """All versions of one definition, newest first."""
        ...


class Suspensions(Protocol):
    """Pending interrupts; `RunLog.append` opens and ends them."""

    async def pending(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """A page of the tenant's pending interrupts, newest first, by keyset."""
        ...

    async def pending_count(self, tenant: str) -> int:
        """How many interrupts of the tenant are pending."""
        ...


class AgentManifests(Protocol):
    """Installed agent manifests, by tenant. Nothing is ever taken away or changed."""

    async def put_agent(self, tenant: str, row: AgentRow) -> bool:
        """Install; True when new, False when the same content is there already.

        Raises `Conflict` with code `agent_exists` when this id and version hold other content.
        """
        ...

    async def agent(self, tenant: str, agent_id: str, version: str | None) -> AgentRow | None:
        """The manifest of that version, or the newest when `version` is None."""
        ...

    async def agents(self, tenant: str, after: str | None, limit: int) -> list[AgentRow]:
        """The newest version of each manifest, by id, after the given id."""
        ...

    async def agents_since(self, tenant: str, place: int, limit: int) -> list[AgentRow]:
        """Every version of every manifest that was installed after that place, in order."""
        ...


class Memories(Protocol):
    """Long-term memory. A reference that is malformed or another tenant's reads as empty.

    A run sees what was there when it started, what it wrote itself, and what the runs that it
    started wrote, once they have completed: with `visible_to_run`, entries that other runs wrote
    after `run_started_at` are left out. An entry that has expired
    is never seen, whether or not it has been deleted.
    """

    async def put_memory(self, tenant: str, row: MemoryRow) -> bool:
        """Keep an entry; False when its id is taken by one that has not expired: that one stays.

        Raises `Refused` for a reference or an id that could not be read again.
        """
        ...

    async def memories(
        self,
        tenant: str,
        memory_ref: str,
        *,
        now: int,
        visible_to_run: str | None = None,
        run_started_at: int | None = None,
        tag: str | None = None,
        limit: int = 100,
    ) -> list[MemoryRow]:
        """The entries under a reference, newest first."""
        ...

    async def memory(
        self,
        tenant: str,
        memory_ref: str,
        memory_id: str,
        now: int,
        *,
        visible_to_run: str | None = None,
        run_started_at: int | None = None,
    ) -> MemoryRow | None:
        """One entry, or None."""
        ...


class Keys(Protocol):
    """API keys. Looking one up by its hash is how a tenant is found, so that call has none."""

    async def put_key(self, row: KeyRow) -> None:
        """Store a new key."""
        ...

    async def key_by_hash(self, key_hash: bytes) -> KeyRow | None:
        """The key with that hash."""
        ...

    async def keys(self, tenant: str | None = None) -> list[KeyRow]:
        """A tenant's keys, or all of them for the operator's command line; newest first."""
        ...

    async def update_key(
        self,
        key_id: str,
        *,
        expires_at: int | None = None,
        revoked_at: int | None = None,
        replaced_by: str | None = None,
    ) -> bool:
        """Set the fields that are given; False when there is no such key."""
        ...


class Answers(Protocol):
    """Layer 1 of idempotency: answers to requests."""

    async def answer(self, tenant: str, key_hash: bytes) -> RememberedAnswer | None:
        """The remembered answer."""
        ...

    async def remember(self, tenant: str, answer: RememberedAnswer) -> None:
        """Keep an answer that no run append carries; the first one kept wins."""
        ...


class Invocations(Protocol):
    """Layer 2 of idempotency: outside effects of nodes."""

    async def claim(self, tenant: str, invocation: Invocation) -> Invocation:
        """Claim atomically; the answer is the record that holds, ours or an earlier one."""
        ...

    async def settle(self, tenant: str, invocation_id: str, state: str, outcome: bytes) -> None:
        """Record how the effect ended."""
        ...


class Store(
    RunLog,
    Clockwork,
    Suspensions,
    Workflows,
    AgentManifests,
    Memories,
    Keys,
    Answers,
    Invocations,
    Protocol,
):
    """One store: all of the above on one database."""

    async def close(self) -> None:
        """Finish what is queued and release the database."""
        ...

    async def ready(self) -> None:
        """Raise `Unavailable` unless a write would be taken now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What `wopr doctor` prints about a store."""

    kind: str
    location: str
    schema_version: int
    runs: int
    events: int
    bytes_on_disk: int
    settings: dict[str, str] = field(default_factory=dict)
