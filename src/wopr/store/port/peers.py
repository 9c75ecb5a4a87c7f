"""Processes that share one database: their leases, their notifications and their queue.

A store that supports only one process has no such part.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from wopr.store.port.runs import TOOL_PREFIX

ProcessKind: TypeAlias = Literal["api", "worker"]
# What a process may cache: a change is sent to all processes.
CachedResource: TypeAlias = Literal["workflows", "agents", "api_keys", "webhooks", "judges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAppended:
    """Events up to this sequence were appended to a run's log."""

    tenant: str
    run_id: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnnotated:
    """A run has a new annotation."""

    tenant: str
    run_id: str
    annotation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWoken:
    """A run whose nodes that process executes was woken."""

    tenant: str
    run_id: str
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChanged:
    """A definition, a key or a subscription was added, changed or deleted."""

    tenant: str
    resource: CachedResource
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveriesQueued:
    """A webhook has new deliveries."""

    tenant: str
    webhook_id: str


@dataclass(frozen=True, slots=True)
class ListenerConnected:
    """The listener has connected; it may have missed notifications before."""


Notification: TypeAlias = (
    RunAppended | RunAnnotated | RunWoken | ResourceChanged | DeliveriesQueued | ListenerConnected
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    """The result of a heartbeat."""

    # Whether the process was unknown: it is new, or it counted as dead and its runs were released.
    is_new: bool
    # Whether this process is the leader until its next heartbeat is due.
    leads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The facts that a process sends with each heartbeat."""

    name: str
    kind: ProcessKind
    # The version of its code, and the node types that it can execute.
    code_version: str = ""
    node_types: tuple[str, ...] = ()
    # The tools of its app, which agents may call.
    tools: tuple[str, ...] = ()
    # Whether it executes nodes.
    executes: bool = True

    @property
    def public_id(self) -> str:
        """The id that clients see. Unlike `name` it does not contain the name of the machine."""
        return self.name.rpartition("-")[2]

    @property
    def code(self) -> list[str]:
        """Its node types and tools, in the form of `code_of`."""
        return [*self.node_types, *(f"{TOOL_PREFIX}{name}" for name in self.tools)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProcess:
    """A live process in the store."""

    process: Process
    # Milliseconds since the epoch, by the store's clock.
    started_at: int
    seen_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFacts:
    """Figures of the processes and their queue."""

    # Wake-ups that are due and wait for a process, and the age of the oldest.
    queue_depth: int = 0
    queue_age_seconds: float = 0.0
    # Runs that a process holds, because it executes their nodes.
    held_runs: int = 0
    # Seconds since the last heartbeat, by process.
    lease_ages: dict[str, float] = field(default_factory=dict[str, float])


class JobWorker(Protocol):
    """Takes wake-ups from the queue."""

    async def run(self) -> None:
        """Work until stopped. Raises `Unavailable` when the store cannot be reached."""
        ...

    def stop(self) -> None:
        """Take no more wake-ups; `run` ends when those in progress have ended."""
        ...


class Peers(Protocol):
    """The processes that share a database."""

    @property
    def owns_tables(self) -> bool:
        """Return whether the login of this process owns the tables.

        The SQL of such a login can read all tenants.
        """
        ...

    def notifications(self) -> AsyncGenerator[Notification, None]:
        """Yield the notifications of all processes."""
        ...

    async def heartbeat(self, process: Process, *, leads: bool = True) -> HeartbeatResult:
        """Send a heartbeat, and acquire, renew or release the leader's lease."""
        ...

    async def rescue(self, now: int) -> int:
        """Release the runs of processes without a heartbeat, and return their number."""
        ...

    async def queue_due(self, now: int) -> int:
        """Queue a wake-up for each held run that is due soon, and for each run that is overdue.

        A run that has a wake-up in the queue gets no second one. Returns the number queued.
        """
        ...

    async def take_due(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Take runs that are due and that no process holds, with their tenants, earliest first.

        No other caller gets them for some seconds. A run that was not advanced by then is due
        again.
        """
        ...

    async def take_runs(self, now: int, run_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Take those of these runs that are due and that no process holds, as `take_due` does."""
        ...

    async def queue_wakeup(self, tenant: str, run_id: str, delay_ms: int) -> None:
        """Queue a wake-up of one run; of several the earliest is kept."""
        ...

    def create_worker(
        self, advance: Callable[[str, str], Awaitable[None]], at_once: int
    ) -> JobWorker:
        """Return a worker that calls `advance` with the tenant and the id of each due run."""
        ...

    async def notify_holder(self, tenant: str, run_id: str, process: str) -> None:
        """Notify the process that holds a run that the run was woken."""
        ...

    async def processes(self) -> list[KnownProcess]:
        """List the live processes, oldest first."""
        ...

    async def hand_over(self, tenant: str, run_id: str, process: str, needs: Sequence[str]) -> bool:
        """Wake a run at its holder, or at a process that has all the code of one of its nodes.

        `needs` has the code of each node, as `code_of` writes it. `process` is the caller and is
        never chosen. Returns False if there is no such process.
        """
        ...

    async def waiting_for(self, code: Sequence[str], limit: int) -> list[tuple[str, str]]:
        """List runs that no process holds and that wait for this code, with their tenants.

        `code` is the code of a process. It must include all the code of one of the run's nodes.
        """
        ...

    async def notify_delivery(self, tenant: str, webhook_id: str) -> None:
        """Notify the process that delivers that a webhook has new deliveries."""
        ...

    async def held_runs(self, process: str) -> list[tuple[str, str]]:
        """List the runs that this process holds, with their tenants."""
        ...

    async def leave(self, process: str, now: int) -> None:
        """Release all runs, so that other processes take them at once, and delete the process."""
        ...

    async def share_fact(self, name: str, value: str) -> str:
        """Store a value that all processes must share, and return the first stored value."""
        ...

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """Wait until no other process is in a block of the same name."""
        ...

    async def annotation(self, tenant: str, run_id: str, annotation_id: str) -> bytes | None:
        """Return the document of one annotation."""
        ...

    async def facts(self) -> PeerFacts:
        """Return figures of the processes and their queue."""
        ...
