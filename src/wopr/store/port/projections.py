"""What the store keeps of the fleet's debts: runs with news that have not been passed on.

A run of the host's own is owed to the fleet as lines; lines that were pushed are owed to the run
that shows them, which is known by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprojected:
    """A run with news. A run that has news again gets a new, higher place."""

    place: int
    tenant: str
    run_id: str


class Projections(Protocol):
    """Two queues, of the host's own runs and of those that show what was pushed.

    `Batch.projects`, `IngestBatch.shown_by` and every new annotation put runs there. Who takes
    from a queue asks across tenants, and gets owners and ids only.
    """

    async def unprojected(
        self, after: int, limit: int, *, observed: bool = False
    ) -> list[Unprojected]:
        """Own or observed runs behind that place, longest waiting first."""
        ...

    async def unprojected_of(self, tenant: str, after: int, limit: int) -> list[Unprojected]:
        """Observed runs of one tenant behind that place, longest waiting first."""
        ...

    async def is_unprojected(self, tenant: str, run_id: str) -> bool:
        """Whether this run of the tenant waits in a queue."""
        ...

    async def projected(self, done: Sequence[Unprojected]) -> None:
        """Take these out; one that has had news since keeps its new place."""
        ...
