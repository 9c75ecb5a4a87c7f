"""What the store keeps of the fleet's debts: runs of this host whose news it has not been told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprojected:
    """A run with news for the fleet. A run that has news again gets a new, higher place."""

    place: int
    tenant: str
    run_id: str


class Projections(Protocol):
    """A queue of runs, which `Batch.projects` and every new annotation put there.

    Who takes from it asks across tenants, and gets owners and ids only.
    """

    async def unprojected(self, after: int, limit: int) -> list[Unprojected]:
        """Runs behind that place, longest waiting first."""
        ...

    async def projected(self, done: Sequence[Unprojected]) -> None:
        """Take these out; one that has had news since keeps its new place."""
        ...
