"""How the reads that every adapter makes alike reach its database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from wopr.store.sql.asking import Asking, T
from wopr.store.sql.dialect import Parameter, Row


class Reads(ABC):
    """Reads of one tenant's rows; statements are spelled with `?` for a parameter."""

    @abstractmethod
    async def _read_few(self, tenant: str, sql: str, parameters: Sequence[Parameter]) -> list[Row]:
        """Read rows by their key."""

    @abstractmethod
    async def _read_many(self, tenant: str, sql: str, parameters: Sequence[Parameter]) -> list[Row]:
        """Read what may be many rows, such as a listing."""

    @abstractmethod
    async def _read_together(self, tenant: str, asking: Asking[T]) -> T:
        """Read in several steps, all of which see the same commit."""
