"""Which runs this process executes nodes of, where several processes share a store.

Anybody may append to a run: the sequence is the fence. Only one process at a time executes what
waits, and its name is in the run's row: taken with the append that starts the first such node,
given back with the one that ends the last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import anyio

from wopr.engine.state import RunState
from wopr.runtime.active import ActiveRun
from wopr.runtime.held_bytes import HeldBytes
from wopr.store.port import Claim

# A run that goes on at once has a wake-up some seconds out, in case its process does not live on.
SAFETY_MS = 3000
# When a run is looked at again that nobody had room for.
PUT_OFF_MS = 500
# When another process looks at a run that this one has no memory for.
NO_MEMORY_MS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingLimits:
    """How many runs with nodes in flight one process has at once, in all and of one tenant.

    `memory_bytes` bounds the memory of the large ones among them.

    With 0 for a tenant, one tenant has at most four fifths of all, so that there is always room for
    the runs of another one.
    """

    runs: int = 1000
    runs_per_tenant: int = 0
    memory_bytes: int = 512 * 1024 * 1024

    @property
    def of_one_tenant(self) -> int:
        """The most runs of one tenant."""
        return self.runs_per_tenant or max(1, self.runs * 4 // 5)


class Holding:
    """The runs that this process has; `process` is empty where it has the store to itself."""

    def __init__(
        self, process: str = "", *, executes: bool = True, limits: HoldingLimits | None = None
    ) -> None:
        self.process = process
        self.executes = executes
        self._limits = limits or HoldingLimits()
        self.memory = HeldBytes(self._limits.memory_bytes)
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._changed = anyio.Event()

    @property
    def is_shared(self) -> bool:
        """Whether other processes work on the same runs."""
        return bool(self.process)

    @property
    def count(self) -> int:
        """How many runs have nodes in flight here."""
        return sum(len(runs) for runs in self._held.values())

    def may_take(self, tenant: str) -> bool:
        """Whether there is room for one more run of this tenant, if there is memory for it."""
        if not self.is_shared:
            return True
        if not self.has_room:
            return False
        return len(self._held.get(tenant, ())) < self._limits.of_one_tenant

    @property
    def has_room(self) -> bool:
        """Whether there is room for one more run of any tenant."""
        return self.executes and self.count < self._limits.runs

    def has(self, tenant: str, run_id: str) -> bool:
        """Whether this run has nodes in flight here."""
        return run_id in self._held.get(tenant, ())

    def claim(self, run: ActiveRun, *, is_fence: bool) -> Claim | None:
        """What this process says about a run with its next append; None where nothing changes."""
        if not self.is_shared:
            return None
        keeps = self._keeps(run)
        if not (keeps or run.is_held or is_fence):
            return None
        if keeps:
            # Counted before it is written: others are about to be written too.
            self._held[run.state.identity.tenant].add(run.state.identity.run_id)
        return Claim(process=self.process, keeps=keeps, is_fence=is_fence)

    def _keeps(self, run: ActiveRun) -> bool:
        identity = run.state.identity
        if run.is_held and run.in_flight:
            return True
        if run.is_held and self.has(identity.tenant, identity.run_id):
            # One that is about to leave begins nothing new, if others can begin it.
            return bool(run.launch) and self.executes
        return bool(run.launch) and self.may_take(identity.tenant)

    def due_in(
        self, run: ActiveRun, state: RunState, claim: Claim | None, *, goes_on: bool
    ) -> int | None:
        """When somebody must look at a run after its append; None when only its timers say so."""
        if not self.is_shared:
            return None
        identity = state.identity
        if self.memory.is_waiting(identity.tenant, identity.run_id):
            return NO_MEMORY_MS
        if run.launch and (claim is None or not claim.keeps):
            # Another process must execute these nodes.
            return PUT_OFF_MS if self.executes else 0
        if goes_on:
            return SAFETY_MS
        return 0 if run.has_uncalled(state) else None

    async def until_empty(self) -> None:
        """Wait until no run has nodes in flight here."""
        while self.count:
            self._changed = anyio.Event()
            await self._changed.wait()

    def note(self, run: ActiveRun) -> None:
        """Hear whether this process has a run, after it was written or given up."""
        identity = run.state.identity
        self.memory.update(identity.tenant, identity.run_id, run.held_bytes)
        if not self.is_shared:
            return
        if run.is_held:
            self._held[identity.tenant].add(identity.run_id)
        elif identity.tenant in self._held:
            self._held[identity.tenant].discard(identity.run_id)
            if not self._held[identity.tenant]:
                del self._held[identity.tenant]
            self._changed.set()
