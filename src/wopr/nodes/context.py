"""What a node may do while it runs. The runtime implements it; nodes see nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import httpx

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.runs import RunError, RunStatus

LogLevel = Literal["debug", "info", "warn", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child run as its parent's node sees it."""

    run_id: str
    workflow_id: str
    status: RunStatus
    variables: JsonObject
    error: RunError | None

    @property
    def has_ended(self) -> bool:
        """Whether the child's log is closed."""
        return self.status in ("completed", "failed", "cancelled")


class NodeContext(Protocol):
    """The node's side of the run.

    Whatever is emitted or written is appended together with the node's outcome, or earlier at
    `flush`. A node that is called again after a restart, a sleep or a child's end gets the same
    `attempt` and `started_at`, so it can tell what is left to do.
    """

    tenant: str
    run_id: str
    workflow_id: str
    node_id: str
    attempt: int
    # Which round of the loop around this node, from 0.
    iteration: int
    # When the node started and what time it is, in milliseconds since the epoch.
    started_at: int
    now: int
    # How many `output.chunk` events this execution has on the log already.
    chunks: int
    configurable: Mapping[str, Json]
    children: tuple[ChildView, ...]
    http: httpx.AsyncClient

    @property
    def variables(self) -> Mapping[str, Json]:
        """The run's variables, with what this node has set."""
        ...

    @property
    def scope(self) -> Mapping[str, Json]:
        """What an expression of this node can see."""
        ...

    def emit(self, event_type: str, payload: JsonObject, *, causation_id: str = "") -> str:
        """Put an event on the run's log and return its id."""
        ...

    def set_variable(self, name: str, value: Json) -> None:
        """Change a variable of the run."""
        ...

    def read_channel(self, name: str) -> Json:
        """The folded value of a channel, or `UNSET`."""
        ...

    def write_channel(self, name: str, value: Json, *, reducer: str = "") -> None:
        """Write to a channel; the reducer of a declared channel is the declared one."""
        ...

    def log(self, level: LogLevel, message: str, **fields: Json) -> None:
        """Put a line on the run's log."""
        ...

    def version(self, change_id: str, minimum: int, maximum: int) -> int:
        """Pin a version for this run: the first call fixes `maximum`, replays repeat the pin."""
        ...

    def add_artifact(self, artifact_type: str, content: Json, *, summary: str = "") -> str:
        """Keep a document with the run and return its id."""
        ...

    async def flush(self) -> None:
        """Append what has been emitted so far, so that readers see it now."""
        ...

    async def spawn(self, workflow_id: str, inputs: JsonObject) -> str:
        """Start a child run in the same transaction as its `node.dispatched` event."""
        ...

    def invocation_id(self, provider_key: str) -> str:
        """The layer-2 id of an effect: the same for every attempt and after every restart."""
        ...

    async def once(self, provider_key: str, effect: Callable[[], Awaitable[Json]]) -> Json:
        """Perform an outside effect once per logical invocation and record what came of it."""
        ...
