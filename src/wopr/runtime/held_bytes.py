"""Memory of runs in flight: bounded for a tenant and for the process; further large runs wait.

A run is in memory as long as one of its nodes is executed. What its state holds can be 26 times as
large as the JSON that it was decoded from. Small runs are not counted: their number is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Runs of less than this are admitted without being counted.
SMALL_BYTES: Final = 64 * 1024
# The share of one tenant.
TENANT_SHARE: Final = 0.5


class HeldBytes:
    """Admits large runs while there is room, and wakes those that wait in the order they came.

    A tenant without a large run in flight may always have one. A woken run is counted from then
    on, until it is let go. A run that waits for a child or a person is not in memory, so it keeps
    no other run out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.wake: Callable[[str, str], None] = lambda tenant, run_id: None
        # Tenant to run id to bytes: runs in flight, and runs that wait in order.
        self._counted: dict[str, dict[str, int]] = {}
        self._waiting: dict[str, dict[str, int]] = {}

    @property
    def count(self) -> int:
        """The bytes of the large runs in flight."""
        return sum(sum(runs.values()) for runs in self._counted.values())

    @property
    def waiting(self) -> int:
        """The number of runs that wait for room."""
        return sum(len(runs) for runs in self._waiting.values())

    def admit(self, tenant: str, run_id: str, size: int) -> bool:
        """Count a run whose node is to be executed; False when it has to wait.

        It keeps its place among those that wait, and is woken when there is room.
        """
        if self.update(tenant, run_id, size) or size < SMALL_BYTES:
            return True
        if self._waiting.get(tenant) or not self._has_room(tenant, size):
            self._waiting.setdefault(tenant, {})[run_id] = size
            return False
        self._counted.setdefault(tenant, {})[run_id] = size
        return True

    def update(self, tenant: str, run_id: str, size: int) -> bool:
        """Record the size of a run that has grown; False when the run is not counted."""
        counted = self._counted.get(tenant, {})
        if run_id not in counted:
            return False
        counted[run_id] = size
        return True

    def is_waiting(self, tenant: str, run_id: str) -> bool:
        """Whether a run waits for room."""
        return run_id in self._waiting.get(tenant, ())

    def forget(self, tenant: str, run_id: str) -> None:
        """Hear that a run has ended: it waits for nothing."""
        if self.is_waiting(tenant, run_id):
            _remove(self._waiting, tenant, run_id)

    def let_go(self, tenant: str, run_id: str) -> None:
        """Hear that a run is no longer in memory, and wake runs that have room now."""
        if run_id not in self._counted.get(tenant, ()):
            return
        _remove(self._counted, tenant, run_id)
        # Tenants take turns: the one that was woken last is asked last.
        for name in list(self._waiting):
            while runs := self._waiting.get(name):
                first, size = next(iter(runs.items()))
                if not self._has_room(name, size):
                    break
                _remove(self._waiting, name, first)
                if name in self._waiting:
                    self._waiting[name] = self._waiting.pop(name)
                self._counted.setdefault(name, {})[first] = size
                self.wake(name, first)

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
