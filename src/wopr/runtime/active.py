"""A run while this process works on it."""

from __future__ import annotations

import anyio

from wopr.engine.state import RunState
from wopr.runtime.library import Compiled
from wopr.runtime.spilling import Spilled
from wopr.runtime.vault import Vault
from wopr.runtime.wishes import PauseWish
from wopr.store.port import RunRow
from wopr.store.port.runs import code_of

# Before the first wake-up of all.
HEARD_NONE = -1


class ActiveRun:
    """A run in memory: its state, what is in flight, and the lock that makes one writer of us.

    `parked` are nodes that returned without being done: they are called again at an instant, or
    (None) when something outside happens. It is empty after a restart, so that every node that
    the log calls running is then called again.
    """

    __slots__ = (
        "agents",
        "compiled",
        "due_in",
        "has_crashes",
        "heard",
        "in_flight",
        "is_held",
        "lacking_tools",
        "launch",
        "lock",
        "log_bytes",
        "memory",
        "missed",
        "missing_types",
        "parked",
        "pausing",
        "row",
        "spilled",
        "state",
        "vault",
    )

    def __init__(
        self, state: RunState, compiled: Compiled, vault: Vault, row: RunRow | None
    ) -> None:
        self.state = state
        self.compiled = compiled
        self.vault = vault
        self.row = row
        # Bytes of the run's events, and of the values that they refer to.
        self.log_bytes = 0
        # Bytes that the state takes in memory, estimated, without the values in `spilled`.
        self.memory = 0
        self.spilled = Spilled()
        self.lock = anyio.Lock(fast_acquire=True)
        self.in_flight: dict[str, anyio.CancelScope] = {}
        self.parked: dict[str, int | None] = {}
        # Nodes in flight whose run was woken meanwhile: what woke it may be news to them.
        self.missed: set[str] = set()
        # A pause that waits for the nodes in flight; nothing new starts meanwhile.
        self.pausing: PauseWish | None = None
        # Async nodes that start once the events that say so are committed.
        self.launch: list[str] = []
        # Where processes share the store: whether this one executes the run's nodes, and in how
        # many milliseconds somebody must look at it whatever its timers say.
        self.is_held = False
        self.due_in: int | None = None
        # Whether a process died with it, and this one has not yet shown that it does no harm.
        self.has_crashes = False
        # Agents that the store knows as taking part in the run.
        self.agents: set[str] = set()
        # Nodes that are due and that this process has no code for: node id to the code.
        self.missing_types: dict[str, str] = {}
        # Nodes of agents that need tools which this process has not, with all tools that each
        # needs; None until they are looked up.
        self.lacking_tools: dict[str, list[str]] | None = None
        # Up to which wake-up its nodes were called: whoever only reads the row has heard of none.
        self.heard = 0 if row is None else HEARD_NONE

    @property
    def held_bytes(self) -> int:
        """The bytes that the run takes in memory, estimated."""
        return self.memory + self.spilled.memory

    @property
    def is_idle(self) -> bool:
        """Whether this process holds nothing that the store does not."""
        return not (self.in_flight or self.launch)

    def has_code(self, node_id: str) -> bool:
        """Whether this process has the code of a node: its type, and the tools of its agent."""
        has_tools = node_id not in (self.lacking_tools or ())
        return has_tools and self.compiled.types[node_id] is not None

    def code(self, node_id: str) -> str:
        """The code that a node needs, as its run waits for it."""
        tools = (self.lacking_tools or {}).get(node_id, ())
        return code_of(self.compiled.graph.nodes[node_id].type_id, tools)

    def has_uncalled(self, state: RunState) -> bool:
        """Whether a node is running by the log's word alone, in a run that this process moves on.

        Another process began it, or what came of its call here could not be written.
        """
        if state.status == "paused" or not (self.is_held or self.heard != HEARD_NONE):
            return False
        known = {*self.in_flight, *self.launch, *self.parked}
        return any(
            node.status == "running" and node_id not in known
            for node_id, node in state.nodes.items()
            if self.has_code(node_id)
        )
