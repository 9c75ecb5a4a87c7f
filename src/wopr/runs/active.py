"""A run in memory, and the pending commands that are stored with a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import anyio
import msgspec

from wopr.engine.state import NodeState, RunState
from wopr.protocol.documents import Document
from wopr.runs.definitions.library import CompiledWorkflow
from wopr.runs.large_values import LargeValues
from wopr.runs.sensitive_values import SensitiveValues
from wopr.store.port import RunRow
from wopr.store.port.runs import code_of

# The value of `ActiveRun.last_wake` of a run whose nodes were not called yet.
NO_WAKE: Final = -1


class PendingPause(Document, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """A command to pause once the nodes in flight have ended.

    `since` is the length of the log that the client saw.
    """

    reason: str = ""
    since: int = 0

    def is_settled(self, state: RunState) -> bool:
        """Return whether the run was paused or resumed after the client saw it.

        A process may read a command late. A resume also ends the commands that were stored before.
        """
        return state.last_command >= self.since


class PendingCancel(Document, frozen=True, kw_only=True, tag_field="kind", tag="cancel"):
    """A command to cancel a run, because its parent was cancelled."""

    reason: str
    parent_run_id: str = ""


PendingRunCommand: TypeAlias = PendingPause | PendingCancel


def read_pending_command(body: bytes | None) -> PendingRunCommand | None:
    """Decode the command that is stored with a run."""
    return None if body is None else msgspec.json.decode(body, type=PendingRunCommand)


class ActiveRun:
    """A run in memory: its state, its nodes in flight, and the lock of its writer in this process.

    `parked` has the nodes that returned before they were done, with the time of their next call, or
    None when an event outside of the run causes that call. After a restart it is empty, so that
    every node that is running by the log is called again.
    """

    __slots__ = (
        "agents",
        "call_again",
        "compiled",
        "due_in",
        "has_crashes",
        "in_flight",
        "is_held",
        "lacking_tools",
        "large_values",
        "last_wake",
        "lock",
        "log_bytes",
        "memory",
        "missing_types",
        "parked",
        "pending_pause",
        "row",
        "sensitive",
        "state",
        "to_launch",
    )

    def __init__(
        self,
        state: RunState,
        compiled: CompiledWorkflow,
        sensitive: SensitiveValues,
        row: RunRow | None,
    ) -> None:
        self.state = state
        self.compiled = compiled
        self.sensitive = sensitive
        self.row = row
        # Bytes of the run's events, and of the values that they refer to.
        self.log_bytes = 0
        # Estimated bytes of the state in memory, without the values in `large_values`.
        self.memory = 0
        self.large_values = LargeValues()
        self.lock = anyio.Lock(fast_acquire=True)
        self.in_flight: dict[str, anyio.CancelScope] = {}
        self.parked: dict[str, int | None] = {}
        # Nodes in flight whose run was woken during their call. They are called once more.
        self.call_again: set[str] = set()
        # A pause that waits for the nodes in flight. No other node starts before it.
        self.pending_pause: PendingPause | None = None
        # Async nodes that start once their `node.started` is committed.
        self.to_launch: list[str] = []
        # Whether this process has the lease of the run. Only set where processes share the store.
        self.is_held = False
        # Milliseconds until a process must advance the run, independent of its timers.
        self.due_in: int | None = None
        # Whether a process crashed while it executed the run, and this process may crash too.
        self.has_crashes = False
        # Agents that are stored as members of the run.
        self.agents: set[str] = set()
        # Nodes that are due and that this process has no code for: node id to the code.
        self.missing_types: dict[str, str] = {}
        # Nodes whose agents need tools that this process does not have, each with all tools that it
        # needs; None before they are looked up.
        self.lacking_tools: dict[str, list[str]] | None = None
        # Last wake-up counter that was acted on.
        self.last_wake = 0 if row is None else NO_WAKE

    @property
    def memory_bytes(self) -> int:
        """Estimate the bytes that the run takes in memory."""
        return self.memory + self.large_values.memory

    @property
    def is_idle(self) -> bool:
        """Return whether no node is in flight or about to be."""
        return not (self.in_flight or self.to_launch)

    def has_code(self, node_id: str) -> bool:
        """Return whether this process has the type of a node and the tools of its agent."""
        has_tools = node_id not in (self.lacking_tools or ())
        return has_tools and self.compiled.types[node_id] is not None

    def needed_code(self, node_id: str) -> str:
        """Return the code that a node needs, in the form of `RunRow.missing_types`."""
        tools = (self.lacking_tools or {}).get(node_id, ())
        return code_of(self.compiled.graph.nodes[node_id].type_id, tools)

    def has_uncalled_node(self, state: RunState) -> bool:
        """Return whether a node is running by the log and is not executed by this process.

        Another process started it, or the outcome of its call here could not be written.
        """
        if state.status == "paused" or not (self.is_held or self.last_wake != NO_WAKE):
            return False
        known = {*self.in_flight, *self.to_launch, *self.parked}
        return any(
            node.status == "running" and node_id not in known
            for node_id, node in state.nodes.items()
            if self.has_code(node_id)
        )

    def cancel_ended_nodes(self) -> None:
        """Cancel the executions of nodes that are no longer running by the log."""
        for node_id, in_flight in list(self.in_flight.items()):
            if self.state.is_terminal or self.state.nodes[node_id].status != "running":
                in_flight.cancel()

    def cancel_superseded_nodes(self, before: Mapping[str, NodeState]) -> None:
        """Cancel the executions of nodes that another process has started since `before`."""
        for node_id in list(self.in_flight):
            if self.state.nodes[node_id].started_event != before[node_id].started_event:
                self.in_flight.pop(node_id).cancel()

    def stop(self) -> None:
        """Cancel all executions: another process has the lease of the run."""
        if not self.is_idle:
            # Another process must call the nodes, so their wake-up must stay in the row.
            self.last_wake = NO_WAKE
        for in_flight in self.in_flight.values():
            in_flight.cancel()
        self.in_flight.clear()
        self.to_launch.clear()
        self.is_held = False
