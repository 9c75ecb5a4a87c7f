"""What several processes on one database ask of it: who lives, who has which run, what is new.

A store that only one process can serve has no such part.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from wopr.store.port.runs import TOOL_PREFIX

Kind: TypeAlias = Literal["api", "worker"]
# What a process may keep in memory: a change of it is told to all.
Kept: TypeAlias = Literal["workflows", "agents", "api_keys", "webhooks", "judges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A run's log has grown up to this sequence."""

    tenant: str
    run_id: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """A run has a new annotation."""

    tenant: str
    run_id: str
    annotation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Woken:
    """Something happened to a run whose nodes that process executes."""

    tenant: str
    run_id: str
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A definition, a key or a subscription is new, other or gone."""

    tenant: str
    kept: Kept
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A webhook has something new to be told."""

    tenant: str
    webhook_id: str


@dataclass(frozen=True, slots=True)
class Listening:
    """Listening begins, or begins again: whatever came before may have gone unheard."""


News: TypeAlias = Grown | Annotated | Woken | Changed | Owed | Listening


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a sign of life is answered with."""

    # The process was not known: it is new, or was taken for dead and its runs given away.
    is_new: bool
    # Whether the duties that only one process has are this one's until its next beat is due.
    leads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a process says of itself with each sign of life."""

    name: str
    kind: Kind
    # The version of the code that it executes nodes with, and the types that it has code for.
    code_version: str = ""
    node_types: tuple[str, ...] = ()
    # The tools of its app, which agents may call.
    tools: tuple[str, ...] = ()
    # Whether it executes nodes.
    executes: bool = True

    @property
    def shown_id(self) -> str:
        """The id that clients see. The name holds the name of the machine too."""
        return self.name.rpartition("-")[2]

    @property
    def code(self) -> list[str]:
        """Its node types and tools, as the code that a node needs is written."""
        return [*self.node_types, *(f"{TOOL_PREFIX}{name}" for name in self.tools)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProcess:
    """A process that is alive, as the store knows it."""

    process: Process
    # Milliseconds since the epoch, by the store's clock.
    started_at: int
    seen_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFacts:
    """How the processes and their queue are doing."""

    # Wake-ups that are due and wait for a process, and how long the oldest has.
    queue_depth: int = 0
    queue_age_seconds: float = 0.0
    # Runs whose nodes are in flight somewhere.
    held_runs: int = 0
    # Seconds since the last sign of life, by process.
    lease_ages: dict[str, float] = field(default_factory=dict[str, float])


class JobWorker(Protocol):
    """Takes wake-ups from the queue."""

    async def run(self) -> None:
        """Work until stopped. Raises `Unavailable` when the store is away."""
        ...

    def stop(self) -> None:
        """Take no more; `run` ends when what was begun has."""
        ...


class Peers(Protocol):
    """The processes that share a database."""

    @property
    def owns_tables(self) -> bool:
        """Whether the login of this process owns the tables, so that its SQL can read all tenants."""
        ...

    def news(self) -> AsyncGenerator[News, None]:
        """Hear of what any process writes, for as long as it is iterated."""
        ...

    async def beat(self, process: Process, *, leads: bool = True) -> Beat:
        """Give a sign of life, and take or keep the lead where nobody else has it, or give it up."""
        ...

    async def rescue(self, now: int) -> int:
        """Free the runs of processes that gave no sign of life; answers how many."""
        ...

    async def queue_due(self, now: int) -> int:
        """Queue a wake-up for each held run that is due soon, and for each run that is overdue.

        A run that has a wake-up in the queue gets no second one. Returns the number queued.
        """
        ...

    async def take_due(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Take runs that are due and that no process holds, with their tenants, earliest first.

        No other caller gets them for some seconds. A run that was not advanced by then is due again.
        """
        ...

    async def take(self, now: int, run_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Take those of these runs that are due and that no process holds, as `take_due` does."""
        ...

    async def queue(self, tenant: str, run_id: str, delay_ms: int) -> None:
        """Queue a wake-up of one run; of several the earliest holds."""
        ...

    def worker(self, advance: Callable[[str, str], Awaitable[None]], at_once: int) -> JobWorker:
        """Something that calls `advance` with the tenant and the id of each run that is due."""
        ...

    async def tell(self, tenant: str, run_id: str, process: str) -> None:
        """Tell the process that has a run that it was woken."""
        ...

    async def processes(self) -> list[KnownProcess]:
        """The processes that are alive, the oldest first."""
        ...

    async def hand_over(self, tenant: str, run_id: str, process: str, needs: Sequence[str]) -> bool:
        """Wake a run at its holder, or at a process that has all the code of one of its nodes.

        `needs` has the code of each node, as `code_of` writes it. `process` is the one that asks;
        it is not chosen. False when there is no such process.
        """
        ...

    async def waiting_for(self, code: Sequence[str], limit: int) -> list[tuple[str, str]]:
        """Runs that no process holds and that wait for this code, with their tenants.

        `code` is the code of a process. It must be all the code that one of the run's nodes needs.
        """
        ...

    async def owe(self, tenant: str, webhook_id: str) -> None:
        """Tell whoever delivers that a webhook has something new to be told."""
        ...

    async def held(self, process: str) -> list[tuple[str, str]]:
        """The runs that this process has, with their tenants."""
        ...

    async def leave(self, process: str, now: int) -> None:
        """Give all runs back, to be taken up elsewhere at once, and be known no longer."""
        ...

    async def agree(self, name: str, value: str) -> str:
        """Record a fact that all processes must share; answers with the one that came first."""
        ...

    def alone(self, name: str) -> AbstractAsyncContextManager[None]:
        """Wait until no other process is in a block of the same name."""
        ...

    async def annotation(self, tenant: str, run_id: str, annotation_id: str) -> bytes | None:
        """The document of one annotation that was told of."""
        ...

    async def facts(self) -> PeerFacts:
        """How the processes and their queue are doing."""
        ...
