"""`SqlDatabase` on PostgreSQL: reads, changes and transactions on a pool of connections.

Every call for a tenant first sets a signed token of that tenant in `wopr.token`, for the current
transaction and in the same round trip. Row-level security then shows the rows of that tenant. The
functions that cross tenants, all named `host_...`, need a token of the host instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar

import anyio
import psycopg
import structlog
from psycopg import AsyncConnection, errors
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg_pool import PoolClosed

from wopr.store.port.store import StoreOptions
from wopr.store.postgres.faults import is_disconnection, is_repeatable, translate_error
from wopr.store.postgres.pool import Address, Pool
from wopr.store.postgres.schema_constants import SERVICE_ROLE, TOKEN_REFUSED
from wopr.store.postgres.texts import escape_texts
from wopr.store.postgres.tokens import HOST, LIFETIME_SECONDS, TENANT, TokenKey
from wopr.store.tables.database import ByteLimit, SqlDatabase
from wopr.store.tables.dialect import POSTGRES, Row, Sql, Value
from wopr.store.tables.statements import (
    Lookup,
    LookupPlan,
    LookupRows,
    Operation,
    Statement,
    by_key,
)

T = TypeVar("T")
Connection: TypeAlias = AsyncConnection[Row]

_SET_TOKEN = "SELECT set_config('wopr.token', %s, true)"
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
_HOST_FUNCTIONS = "host_"
_TOKEN_CACHE_SIZE = 4096
_BEGIN_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_MAX_ATTEMPTS = 5
# How long a server counts as full after an error, although it may accept small changes.
_DISK_FULL_SECONDS = 5.0
_LOGGED_CHARACTERS = 60
# The shortest time between two log lines about the same slow statement.
_LOG_SECONDS = 10.0
_TYPES: dict[type, str] = {str: "text", int: "bigint", bytes: "bytea"}

log = structlog.get_logger("wopr.store")


class Transaction:
    """A transaction of one tenant. Queued statements are sent with the next query or the commit."""

    def __init__(self, connection: Connection, tenant: str, token: str) -> None:
        self.connection = connection
        self.tenant = tenant
        self.token = token

    async def queue(self, sql: str, values: Sequence[Value] = ()) -> None:
        """Send a statement without waiting for its result. If it fails, the transaction fails."""
        await execute(self.connection, sql, values)

    async def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Send a statement and wait for its rows."""
        return await (await execute(self.connection, sql, values)).fetchall()

    async def row(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """Return the first row, or None."""
        rows = await self.rows(sql, values)
        return rows[0] if rows else None

    async def rows_of_each(self, sent: Sequence[tuple[str, Sequence[Value]]]) -> list[list[Row]]:
        """Send several statements together and wait for the rows of each."""
        cursors = [await execute(self.connection, sql, values) for sql, values in sent]
        return [await cursor.fetchall() for cursor in cursors]

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation in this transaction."""
        try:
            statement = next(operation)
            while True:
                statement = operation.send(await self._result(statement))
        except StopIteration as end:
            result: T = end.value
            return result

    async def look_up(self, plan: LookupPlan[T]) -> T:
        """Run a lookup plan, with one round trip for each of its steps."""
        try:
            lookups = next(plan)
            while True:
                lookups = plan.send(await self._lookup_rows(lookups))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _result(self, statement: Statement) -> list[Row]:
        sql = POSTGRES.render(statement.sql)
        if not sql:
            return []
        if statement.mode == "query":
            return await self.rows(sql, statement.values[0])
        if not statement.values:
            return []
        if statement.mode == "query_each":
            return await self.rows(*_for_all_keys(sql, statement.values))
        if statement.mode == "query_bulk":
            return await self.rows(sql, _columns(statement.values))
        if statement.mode == "execute_bulk":
            await self.queue(sql, _columns(statement.values))
            return []
        for values in statement.values:
            await self.queue(sql, values)
        return []

    async def _lookup_rows(self, lookups: Sequence[Lookup]) -> LookupRows:
        sent = [
            _for_all_keys(POSTGRES.render(each.sql), each.keys) for each in lookups if each.keys
        ]
        found = iter(await self.rows_of_each(sent))
        return [by_key(next(found), len(each.keys)) if each.keys else [] for each in lookups]


class Database(SqlDatabase):
    """The pool of one process, with the role of the service."""

    dialect = POSTGRES

    def __init__(self, address: Address, options: StoreOptions, key: TokenKey) -> None:
        self._options = options
        self._key = key
        # Seconds between this machine's clock and the server's, by which tokens expire.
        self._clock_offset = 0.0
        # Tokens by connection and subject, each with its expiry.
        self._tokens: dict[tuple[int, str], tuple[float, str]] = {}
        # The number of calls that use a connection, or wait for one.
        self._users = 0
        self._unused = anyio.Event()
        self._is_closed = False
        # The end of the time for which the disk of the server counts as full.
        self._full_until = 0.0
        self.address = address
        # Contains the password: never printed.
        self.conninfo = address.conninfo_with(*_session(options))
        self.pool = Pool(
            self.conninfo,
            min_size=1,
            max_size=options.pool_size,
            timeout=options.pool_timeout_seconds,
            configure=self._configure,
        )
        # For each slow statement, when it was last logged and how often it was slow since.
        self._slow: dict[str, tuple[float, int]] = {}

    async def open(self) -> None:
        """Connect. Raises `Unavailable` when the database cannot be reached."""
        try:
            await self.pool.open(wait=True, timeout=self._options.pool_timeout_seconds)
        except psycopg.Error as error:
            await self.pool.close()
            raise translate_error(error) from error

    async def close(self) -> None:
        """Refuse new calls, wait for calls in progress, and disconnect."""
        self._is_closed = True
        if self._users:
            await self._unused.wait()
        await self.pool.close()

    @property
    def is_disk_full(self) -> bool:
        """Return whether the server's disk was full a moment ago."""
        return time.monotonic() < self._full_until

    async def read(self, tenant: str, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows of one tenant in one round trip."""
        return await self._with_retry(lambda: self._read(tenant, sql, values))

    async def read_few(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Read rows of one tenant in one round trip."""
        return await self.read(tenant, POSTGRES.render(sql), values)

    async def read_many(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Read rows of one tenant in one round trip."""
        return await self.read(tenant, POSTGRES.render(sql), values)

    async def read_signed(self, tenant: str, sql: Sql, values: Sequence[Value]) -> list[Row]:
        """Call a reading function for one tenant; its first argument is the tenant's token."""
        text = POSTGRES.render(sql)
        return await self._with_retry(lambda: self._call_signed(tenant, text, values))

    async def read_within(
        self, tenant: str, sql: Sql, values: Sequence[Value], limit: ByteLimit
    ) -> list[Row]:
        """Read rows of one tenant up to a number of bytes."""
        text = limited_to_bytes(
            POSTGRES.render(sql), column=limit.column, columns=limit.columns, order=limit.order
        )
        return await self.read(tenant, text, (*values, limit.most_bytes))

    async def read_snapshot(self, tenant: str, plan: LookupPlan[T]) -> T:
        """Read in several steps, all of which see the same commit."""

        async def work(transaction: Transaction) -> T:
            return await transaction.look_up(plan)

        async with self.connection(getattr(plan, "__qualname__", "read_snapshot")) as connection:
            return await self._transact(connection, tenant, work, begin=(_BEGIN_SNAPSHOT,))

    async def transact(self, tenant: str, operation: Callable[[], Operation[T]]) -> T:
        """Run an operation in one transaction; after a deadlock it runs again."""

        async def work(transaction: Transaction) -> T:
            return await transaction.run(operation())

        work.__qualname__ = _name_of(operation)
        return await self.run(tenant, work)

    async def read_host_few(self, sql: Sql, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows of no tenant, or of all tenants."""
        return await self.read_host(POSTGRES.render(sql), values)

    async def read_host_many(self, sql: Sql, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows of no tenant, or of all tenants."""
        return await self.read_host(POSTGRES.render(sql), values)

    async def change_host(self, sql: Sql, values: Sequence[Value] = ()) -> int:
        """Call a function that changes rows across tenants; its result is their number."""
        rows = await self.write_host(POSTGRES.render(sql), values)
        return sum(row[0] for row in rows if isinstance(row[0], int))

    async def read_host(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows of no tenant, or of all tenants."""
        return await self._with_retry(lambda: self._read_host(sql, values))

    async def write_host(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Change rows of no tenant, or of all tenants, with one statement."""
        async with self.connection(sql) as connection:
            return await self._execute_for_host(connection, sql, values)

    async def change(self, tenant: str, sql: Sql, values: Sequence[Value]) -> int:
        """Change rows of one tenant with one statement, and return their number."""
        text = POSTGRES.render(sql)
        async with self.connection(text) as connection:
            async with connection.pipeline():
                await execute(connection, _SET_TOKEN, (self.token(connection, tenant),))
                cursor = await execute(connection, text, values)
            return cursor.rowcount

    async def run(self, tenant: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in a transaction; after a deadlock it runs again."""
        for left in reversed(range(_MAX_ATTEMPTS)):
            try:
                async with self._acquire(getattr(work, "__qualname__", "work")) as connection:
                    return await self._transact(connection, tenant, work)
            except psycopg.Error as error:
                if not (left and is_repeatable(error)):
                    raise translate_error(error) from error
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def connection(self, name: str) -> AsyncGenerator[Connection, None]:
        """Acquire a connection, and translate the driver's errors."""
        try:
            async with self._acquire(name) as connection:
                yield connection
        except psycopg.Error as error:
            raise translate_error(error) from error

    def token(self, connection: Connection, tenant: str) -> str:
        """Sign a tenant for one connection."""
        return self._sign(connection, TENANT + tenant)

    def host_token(self, backend_pid: int) -> str:
        """Sign a token of the host for a connection outside the pool."""
        return self._key.token(
            backend_pid, int(time.time() + self._clock_offset) + LIFETIME_SECONDS, HOST
        )

    def _sign(self, connection: Connection, subject: str) -> str:
        key, now = (connection.info.backend_pid, subject), time.time() + self._clock_offset
        expires, token = self._tokens.get(key, (0.0, ""))
        if not LIFETIME_SECONDS / 2 < expires - now <= LIFETIME_SECONDS:
            if len(self._tokens) >= _TOKEN_CACHE_SIZE:
                self._tokens.clear()
            expires = int(now) + LIFETIME_SECONDS
            token = self._key.token(key[0], expires, subject)
            self._tokens[key] = (expires, token)
        return token

    async def _read(self, tenant: str, sql: str, values: Sequence[Value]) -> list[Row]:
        async with self._acquire(sql) as connection, connection.pipeline():
            await execute(connection, _SET_TOKEN, (self.token(connection, tenant),))
            return await (await execute(connection, sql, values)).fetchall()

    async def _call_signed(self, tenant: str, sql: str, values: Sequence[Value]) -> list[Row]:
        async with self._acquire(sql) as connection:
            given = (self.token(connection, tenant), *values)
            return await (await execute(connection, sql, given)).fetchall()

    async def _read_host(self, sql: str, values: Sequence[Value]) -> list[Row]:
        async with self._acquire(sql) as connection:
            return await self._execute_for_host(connection, sql, values)

    async def _execute_for_host(
        self, connection: Connection, sql: str, values: Sequence[Value]
    ) -> list[Row]:
        if _HOST_FUNCTIONS not in sql:
            return await (await execute(connection, sql, values)).fetchall()
        async with connection.pipeline():
            await execute(connection, _SET_TOKEN, (self._sign(connection, HOST),))
            return await (await execute(connection, sql, values)).fetchall()

    async def _transact(
        self,
        connection: Connection,
        tenant: str,
        work: Callable[[Transaction], Awaitable[T]],
        begin: Sequence[str] = (),
    ) -> T:
        async with connection.pipeline(), connection.transaction():
            for statement in begin:
                await execute(connection, statement)
            token = self.token(connection, tenant)
            await execute(connection, _SET_TOKEN, (token,))
            return await work(Transaction(connection, tenant, token))

    async def _with_retry(self, read: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
        """Repeat a read once when the connection was lost."""
        try:
            try:
                return await read()
            except psycopg.Error as error:
                if not is_disconnection(error):
                    raise
                await self.pool.check()
                return await read()
        except psycopg.Error as error:
            raise translate_error(error) from error

    async def _configure(self, connection: Connection) -> None:
        # One type for all integers, so that a statement is not prepared once for each size.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        escape_texts(connection)
        [(clock,)] = await (await execute(connection, _CLOCK)).fetchall()
        self._clock_offset = clock - time.time()

    @asynccontextmanager
    async def _acquire(self, name: str) -> AsyncGenerator[Connection, None]:
        if self._is_closed:
            raise PoolClosed("the store is closed")
        self.pool.require_connection()
        self._users += 1
        try:
            # The cancellation of a statement would close its connection, and leave its result
            # unknown.
            with anyio.CancelScope(shield=True):
                async with self.pool.connection() as connection:
                    with self._measure_use(name):
                        try:
                            yield connection
                        except psycopg.Error as error:
                            if error.sqlstate == TOKEN_REFUSED:
                                # The next connection reads the server's clock again.
                                await connection.close()
                            raise
        except errors.DiskFull:
            self._full_until = time.monotonic() + _DISK_FULL_SECONDS
            raise
        finally:
            self._users -= 1
            if self._is_closed and not self._users:
                self._unused.set()

    @contextmanager
    def _measure_use(self, name: str) -> Generator[None, None, None]:
        """Count a connection as in use, and measure how long its statement takes."""
        self.pool.in_use += 1
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.pool.in_use -= 1
            self._log_if_slow(name, time.perf_counter() - begun)

    def _log_if_slow(self, name: str, seconds: float) -> None:
        """Log a slow statement, at most once in `_LOG_SECONDS`."""
        limit = self._options.slow_statement_ms
        if not limit or seconds * 1000 < limit:
            return
        # The text has placeholders and no values.
        statement = " ".join(name.split())[:_LOGGED_CHARACTERS]
        logged_at, count = self._slow.get(statement, (-math.inf, 0))
        if time.monotonic() - logged_at < _LOG_SECONDS:
            self._slow[statement] = (logged_at, count + 1)
            return
        self._slow[statement] = (time.monotonic(), 0)
        log.warning(
            "slow statement",
            statement=statement,
            milliseconds=round(seconds * 1000),
            more_since_last=count,
        )


def _columns(rows: Sequence[Sequence[Value]]) -> list[Value]:
    """Transpose rows to columns, for `_unnest`."""
    found: list[Any] = [list(column) for column in zip(*rows, strict=True)]
    return found


def _unnest(types: Sequence[str]) -> str:
    """Return a table expression with one array parameter for each column."""
    return f"unnest({', '.join(f'%s::{each}[]' for each in types)})"


def limited_to_bytes(listing: str, *, column: str, columns: str, order: str) -> str:
    """Return a statement with the rows of a listing up to the row at which a column reaches a size.

    Its last parameter is the size in bytes.
    """
    # PostgreSQL knows the length of a value without reading it.
    return f"""
SELECT {columns}
FROM (
    SELECT *, sum(length({column})) OVER sorted - length({column}) AS before
    FROM ({listing}) listed
    WINDOW sorted AS (ORDER BY {order})
) sized
WHERE before < %s
ORDER BY {order}
"""


def _for_all_keys(sql: str, keys: Sequence[Sequence[Value]]) -> tuple[str, list[Value]]:
    """Return a statement that reads for all keys, and its parameters."""
    types = tuple(_TYPES[type(part)] for part in keys[0])
    return _with_all_keys(sql, types), _columns(keys)


@cache
def _with_all_keys(sql: str, types: tuple[str, ...]) -> str:
    """Return a statement that reads for all keys, with the number of the key before each row."""
    names = [f"c{place}" for place in range(len(types))]
    for name in names:
        sql = sql.replace(POSTGRES.placeholder, f"k.{name}", 1)
    return (
        f"SELECT k.n - 1, q.* FROM {_unnest(types)} WITH ORDINALITY AS k ({', '.join(names)}, n) "
        f"CROSS JOIN LATERAL ({sql}) AS q"
    )


def _name_of(operation: Callable[[], object]) -> str:
    """Return the name of an operation, for the log of slow statements."""
    function = operation.func if isinstance(operation, partial) else operation
    return str(getattr(function, "__qualname__", "work"))


async def execute(
    connection: Connection, sql: str, values: Sequence[Value] = ()
) -> psycopg.AsyncCursor[Row]:
    """Send one statement. The driver prepares it after a few calls, and rows are binary."""
    cursor = connection.cursor(binary=True)
    # As bytes, because the driver's type for text accepts only literals.
    await cursor.execute(sql.encode(), values or None)
    return cursor


def _session(options: StoreOptions) -> tuple[str, ...]:
    """Return the settings of every connection."""
    milliseconds = round(options.statement_timeout_seconds * 1000)
    return (
        f"role={SERVICE_ROLE}",
        "search_path=wopr",
        f"statement_timeout={milliseconds}",
        f"lock_timeout={milliseconds}",
        f"idle_in_transaction_session_timeout={milliseconds}",
    )
