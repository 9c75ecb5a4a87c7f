"""Where the adapters' SQL differs in spelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

# Rows are the decoding edge: what a driver gives is untyped until a function of `rows` names it.
Row: TypeAlias = tuple[Any, ...]
Parameter: TypeAlias = str | int | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a statement names its parameters, its index, and a join whose order is fixed."""

    mark: str
    ordered_join: str
    names_index: bool

    def by(self, index: str) -> str:
        """Words that make a statement walk this index, where the planner takes orders."""
        return f" INDEXED BY {index}" if self.names_index else ""

    def spelled(self, sql: str) -> str:
        """A statement with `?` for its parameters, as this database reads it."""
        return sql.replace("?", self.mark)

    def marks(self, count: int) -> str:
        """So many parameters."""
        return ", ".join([self.mark] * count)


SQLITE = Dialect(mark="?", ordered_join="CROSS JOIN", names_index=True)
POSTGRES = Dialect(mark="%s", ordered_join="JOIN", names_index=False)
