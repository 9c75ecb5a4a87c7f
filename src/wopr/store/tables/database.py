"""The interface between the tables and a database.

Each table class of this folder implements one part of the store's port on a `SqlDatabase`. The
implementations are `sqlite.database.SqliteDatabase` and `postgres.database.Database`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from wopr.store.tables.dialect import Dialect, Row, Sql, Value
from wopr.store.tables.statements import LookupPlan, Operation, T


class ByteLimit(NamedTuple):
    """The byte limit of a page: the measured column; all columns and the order for PostgreSQL."""

    most_bytes: int
    column: str
    columns: str
    order: str


class SqlDatabase(ABC):
    """A database that executes the statements of this folder.

    Every method that names a tenant sees and changes the rows of that tenant only. On PostgreSQL
    row-level security enforces this. The `host` methods cross tenants; on PostgreSQL they call
    functions whose names begin with `host_`.
    """

    dialect: Dialect

    @abstractmethod
    async def read_few(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Read rows by their key. SQLite reads on the event loop."""

    @abstractmethod
    async def read_many(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Read rows that may be many, such as a listing. SQLite reads in a thread."""

    @abstractmethod
    async def read_signed(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Read rows by their key on a hot path. The first parameter of the statement is the tenant.

        PostgreSQL calls a function, and passes the tenant's signed token. SQLite reads on the event
        loop, and passes the tenant's name.
        """

    @abstractmethod
    async def read_within(
        self, tenant: str, sql: Sql, values: Sequence[Value], limit: ByteLimit
    ) -> list[Row]:
        """Read rows up to the row at which the column reaches the limit."""

    @abstractmethod
    async def read_snapshot(self, tenant: str, plan: LookupPlan[T]) -> T:
        """Read in several steps, all of which see the same commit."""

    @abstractmethod
    async def change(self, tenant: str, sql: Sql, values: Sequence[Value]) -> int:
        """Execute one statement durably, and return the number of changed rows."""

    @abstractmethod
    async def transact(self, tenant: str, operation: Callable[[], Operation[T]]) -> T:
        """Run an operation in one transaction, durably. An exception rolls the transaction back."""

    @abstractmethod
    async def read_host_few(self, sql: Sql, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows of no tenant, or of all tenants, by their key."""

    @abstractmethod
    async def read_host_many(self, sql: Sql, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows of no tenant, or of all tenants, that may be many."""

    @abstractmethod
    async def change_host(self, sql: Sql, values: Sequence[Value] = ()) -> int:
        """Execute one statement across tenants, and return the number of changed rows.

        A function of PostgreSQL returns this number as its result.
        """


class Table:
    """Base of the classes that implement one part of the store's port."""

    def __init__(self, sql: SqlDatabase) -> None:
        self._sql = sql
