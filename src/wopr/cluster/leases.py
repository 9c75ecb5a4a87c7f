"""Leases: the runs whose nodes this process executes, and the memory that these runs may use.

Every process may append to a run: the sequence number is the fence. Only one process at a time
executes the nodes of a run. The row of the run has the name of this process: the append that starts
the first node writes it, and the append that ends the last node removes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio

from wopr.store.port import Claim

# A run that continues at once is due again after this time, in case its process dies.
RECOVERY_DELAY_MS: Final = 3000
# The delay of a run for which this process has no room.
NO_ROOM_DELAY_MS: Final = 500
# The delay after which another process may take a run for which this process has no memory.
NO_MEMORY_DELAY_MS: Final = 5000
# Runs of fewer bytes are admitted without being counted: their number is limited.
SMALL_BYTES: Final = 64 * 1024
# The part of the memory that one tenant may use.
TENANT_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLimits:
    """The most runs with nodes in flight that one process has at once, in total and for one tenant.

    `memory_bytes` limits the memory of the large runs among them. When `runs_per_tenant` is 0, one
    tenant has at most four fifths of all runs, so that other tenants have room.
    """

    runs: int = 1000
    runs_per_tenant: int = 0
    memory_bytes: int = 512 * 1024 * 1024

    @property
    def max_runs_per_tenant(self) -> int:
        """The most runs of one tenant."""
        return self.runs_per_tenant or max(1, self.runs * 4 // 5)


class MemoryBudget:
    """Limits the memory of large runs in flight, for each tenant and for the process.

    A run is in memory while one of its nodes is executed. Its state can take 26 times the size of
    the JSON that it was decoded from. A tenant without a large run in flight may always have one.
    Runs without room wait in the order of their arrival. A run that waits for a child or a person
    is not in memory and is not counted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Tenant to run id to bytes: runs in flight, and runs that wait, in order.
        self._counted: dict[str, dict[str, int]] = {}
        self._waiting: dict[str, dict[str, int]] = {}

    @property
    def count(self) -> int:
        """The total size of the large runs in flight, in bytes."""
        return sum(sum(runs.values()) for runs in self._counted.values())

    @property
    def waiting(self) -> int:
        """The number of runs that wait for room."""
        return sum(len(runs) for runs in self._waiting.values())

    def admit(self, tenant: str, run_id: str, size: int) -> bool:
        """Count a run whose node is about to be executed; return False when it must wait.

        A run that waits keeps its place. `release` returns it when there is room.
        """
        if self.update(tenant, run_id, size) or size < SMALL_BYTES:
            return True
        if self._waiting.get(tenant) or not self._has_room(tenant, size):
            self._waiting.setdefault(tenant, {})[run_id] = size
            return False
        self._counted.setdefault(tenant, {})[run_id] = size
        return True

    def update(self, tenant: str, run_id: str, size: int) -> bool:
        """Record the new size of a run; return False when the run is not counted."""
        counted = self._counted.get(tenant, {})
        if run_id not in counted:
            return False
        counted[run_id] = size
        return True

    def is_waiting(self, tenant: str, run_id: str) -> bool:
        """Return whether a run waits for room."""
        return run_id in self._waiting.get(tenant, ())

    def stop_waiting(self, tenant: str, run_id: str) -> None:
        """Remove a run that has ended from those that wait."""
        if self.is_waiting(tenant, run_id):
            _remove(self._waiting, tenant, run_id)

    def release(self, tenant: str, run_id: str) -> list[tuple[str, str]]:
        """Stop counting a run that is no longer in memory.

        Returns the runs that have room now, as pairs of tenant and run id. They are counted from
        now on, and the caller must wake them.
        """
        admitted: list[tuple[str, str]] = []
        if run_id not in self._counted.get(tenant, ()):
            return admitted
        _remove(self._counted, tenant, run_id)
        for name in list(self._waiting):
            while runs := self._waiting.get(name):
                first, size = next(iter(runs.items()))
                if not self._has_room(name, size):
                    break
                _remove(self._waiting, name, first)
                if name in self._waiting:
                    # Round-robin: the tenant that was served last comes last.
                    self._waiting[name] = self._waiting.pop(name)
                self._counted.setdefault(name, {})[first] = size
                admitted.append((name, first))
        return admitted

    def _has_room(self, tenant: str, size: int) -> bool:
        own = self._counted.get(tenant)
        if not own:
            return True
        share = int(self.limit * TENANT_SHARE)
        return sum(own.values()) + size <= share and self.count + size <= self.limit


def _remove(runs: dict[str, dict[str, int]], tenant: str, run_id: str) -> None:
    del runs[tenant][run_id]
    if not runs[tenant]:
        del runs[tenant]


class Leases:
    """The leases of this process.

    `process` is the name of this process, or empty where no other process shares the store.
    `executes` is False for a process that starts no nodes.
    """

    def __init__(
        self, process: str = "", *, executes: bool = True, limits: LeaseLimits | None = None
    ) -> None:
        self.process = process
        self.executes = executes
        self._limits = limits or LeaseLimits()
        self.memory = MemoryBudget(self._limits.memory_bytes)
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._changed = anyio.Event()

    @property
    def is_shared(self) -> bool:
        """Return whether other processes work on the same runs."""
        return bool(self.process)

    @property
    def count(self) -> int:
        """The number of runs with nodes in flight in this process."""
        return sum(len(runs) for runs in self._held.values())

    @property
    def has_room(self) -> bool:
        """Return whether there is room for one more run of any tenant."""
        return self.executes and self.count < self._limits.runs

    def has_room_for(self, tenant: str) -> bool:
        """Return whether there is room for one more run of this tenant, regardless of memory."""
        if not self.is_shared:
            return True
        if not self.has_room:
            return False
        return len(self._held.get(tenant, ())) < self._limits.max_runs_per_tenant

    def has(self, tenant: str, run_id: str) -> bool:
        """Return whether this run has nodes in flight in this process."""
        return run_id in self._held.get(tenant, ())

    def acquire(
        self,
        tenant: str,
        run_id: str,
        *,
        is_held: bool,
        has_in_flight: bool,
        has_to_start: bool,
        is_fence: bool,
    ) -> Claim | None:
        """Return what the next append writes about the lease of a run; None when nothing changes.

        `has_to_start` says that nodes start after the append. `is_fence` says that the append must
        fail when another process has the lease.
        """
        if not self.is_shared:
            return None
        keeps = self._keeps(tenant, run_id, is_held, has_in_flight, has_to_start)
        if not (keeps or is_held or is_fence):
            return None
        if keeps:
            # Counted before the append: other appends are in progress too.
            self._held[tenant].add(run_id)
        return Claim(process=self.process, keeps=keeps, is_fence=is_fence)

    def _keeps(
        self, tenant: str, run_id: str, is_held: bool, has_in_flight: bool, has_to_start: bool
    ) -> bool:
        if is_held and has_in_flight:
            return True
        if is_held and self.has(tenant, run_id):
            # A process that is about to stop starts no new nodes.
            return has_to_start and self.executes
        return has_to_start and self.has_room_for(tenant)

    def due_in(
        self,
        tenant: str,
        run_id: str,
        claim: Claim | None,
        *,
        has_to_start: bool,
        is_continuing: bool,
        has_uncalled_node: Callable[[], bool],
    ) -> int | None:
        """Return the milliseconds after which a run is due, or None if only its timers make it due.

        `has_uncalled_node` returns whether a node runs according to the log but not in this process.
        """
        if not self.is_shared:
            return None
        if self.memory.is_waiting(tenant, run_id):
            return NO_MEMORY_DELAY_MS
        if has_to_start and (claim is None or not claim.keeps):
            # Another process must execute these nodes.
            return NO_ROOM_DELAY_MS if self.executes else 0
        if is_continuing:
            return RECOVERY_DELAY_MS
        return 0 if has_uncalled_node() else None

    def record(self, tenant: str, run_id: str, *, is_held: bool, memory_bytes: int) -> None:
        """Record whether this process has the lease of a run, and the memory of the run."""
        self.memory.update(tenant, run_id, memory_bytes)
        if not self.is_shared:
            return
        if is_held:
            self._held[tenant].add(run_id)
        elif tenant in self._held:
            self._held[tenant].discard(run_id)
            if not self._held[tenant]:
                del self._held[tenant]
            self._changed.set()

    async def until_empty(self) -> None:
        """Wait until no run has nodes in flight in this process."""
        while self.count:
            self._changed = anyio.Event()
            await self._changed.wait()
