"""Connections, and the three ways to use one: a read, a change, a transaction.

Every call for a tenant begins with a signed token of that tenant in `wopr.token`, for its own
transaction only and in the same round trip: row-level security then shows that tenant's rows. The
functions that cross tenants, all named `host_...`, need a token of the host in the same place.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias, TypeVar

import anyio
import psycopg
import structlog
from psycopg import AsyncConnection, errors
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg_pool import PoolClosed

from wopr.store.options import StoreOptions
from wopr.store.postgres.address import Address
from wopr.store.postgres.faults import is_disconnection, may_pass, translated
from wopr.store.postgres.pool import Pool
from wopr.store.postgres.schema_host import SERVICE
from wopr.store.postgres.schema_tokens import TOKEN_REFUSED
from wopr.store.postgres.texts import hold_any_text
from wopr.store.postgres.tokens import HOST, LIFETIME_SECONDS, TENANT, TokenKey
from wopr.store.sql.dialect import Parameter, Row

T = TypeVar("T")
Connection: TypeAlias = AsyncConnection[Row]
Value: TypeAlias = Parameter | Sequence[Parameter | float]

_SET_TOKEN = "SELECT set_config('wopr.token', %s, true)"
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
_CROSSES_TENANTS = "host_"
_TOKENS_KEPT = 4096
_ONE_VIEW = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_TRIES = 5
# A server that had no room has none for so long, whatever small change it takes meanwhile.
_FULL_SECONDS = 5.0
_LONGEST_NAME = 60
# A slow statement is logged again after so long.
_LOG_SECONDS = 10.0

log = structlog.get_logger("wopr.store")


class Transaction:
    """A transaction of one tenant. What is queued travels with the next question, or the end."""

    def __init__(self, connection: Connection, tenant: str, token: str) -> None:
        self.connection = connection
        self.tenant = tenant
        self.token = token

    async def queue(self, sql: str, values: Sequence[Value] = ()) -> None:
        """Send a statement without waiting for it; should it fail, the transaction does."""
        await execute(self.connection, sql, values)

    async def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Send a statement and wait for its rows."""
        return await (await execute(self.connection, sql, values)).fetchall()

    async def row(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row, or None."""
        rows = await self.rows(sql, values)
        return rows[0] if rows else None

    async def answers(self, asked: Sequence[tuple[str, Sequence[Value]]]) -> list[list[Row]]:
        """Send several statements together and wait for the rows of each."""
        cursors = [await execute(self.connection, sql, values) for sql, values in asked]
        return [await cursor.fetchall() for cursor in cursors]


class Database:
    """The pool of one process, bound to the service's role."""

    def __init__(self, address: Address, options: StoreOptions, key: TokenKey) -> None:
        self._options = options
        self._key = key
        # How far the server's clock is ahead of this machine's: tokens expire by the former.
        self._ahead = 0.0
        # Tokens by connection and subject, each with its expiry.
        self._tokens: dict[tuple[int, str], tuple[float, str]] = {}
        self._users = 0
        self._unused = anyio.Event()
        self._is_closed = False
        self._full_until = 0.0
        self.address = address
        # Holds the password: never printed.
        self.conninfo = address.connecting(*_session(options))
        self.pool = Pool(
            self.conninfo,
            min_size=1,
            max_size=options.pool_size,
            timeout=options.pool_timeout_seconds,
            configure=self._configure,
        )
        # Slow statements: when each was logged last, and how often it was slow since.
        self._slow: dict[str, tuple[float, int]] = {}

    async def open(self) -> None:
        """Connect, so that a database that cannot be reached is told at once."""
        try:
            await self.pool.open(wait=True, timeout=self._options.pool_timeout_seconds)
        except psycopg.Error as error:
            await self.pool.close()
            raise translated(error) from error

    async def close(self) -> None:
        """Take no more calls, wait for those under way, and disconnect."""
        self._is_closed = True
        if self._users:
            await self._unused.wait()
        await self.pool.close()

    @property
    def is_full(self) -> bool:
        """Whether the server had no room for something a moment ago."""
        return time.monotonic() < self._full_until

    async def read(self, tenant: str, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Read rows of one tenant in one round trip."""
        return await self._again_if_cut_off(lambda: self._read(tenant, sql, values))

    async def call(self, tenant: str, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Call a reading function for one tenant, whose token is its first argument."""
        return await self._again_if_cut_off(lambda: self._call(tenant, sql, values))

    async def ask(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Read what belongs to no tenant, or across tenants."""
        return await self._again_if_cut_off(lambda: self._ask(sql, values))

    async def tell(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Change what belongs to no tenant, or across tenants, with one statement."""
        async with self.connection(sql) as connection:
            return await self._unowned(connection, sql, values)

    async def change(self, tenant: str, sql: str, values: Sequence[Value]) -> int:
        """Change rows of one tenant with one statement; answers how many."""
        async with self.connection(sql) as connection:
            async with connection.pipeline():
                await execute(connection, _SET_TOKEN, (self.token(connection, tenant),))
                cursor = await execute(connection, sql, values)
            return cursor.rowcount

    async def view(self, tenant: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Read with several statements, all of which see the same commit."""
        async with self.connection(getattr(work, "__qualname__", "view")) as connection:
            return await self._transact(connection, tenant, work, begin=(_ONE_VIEW,))

    async def run(self, tenant: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Do `work` in a transaction; a deadlock undoes it, and then it is done again."""
        for left in reversed(range(_TRIES)):
            try:
                async with self._lent(getattr(work, "__qualname__", "work")) as connection:
                    return await self._transact(connection, tenant, work)
            except psycopg.Error as error:
                if not (left and may_pass(error)):
                    raise translated(error) from error
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def connection(self, name: str) -> AsyncGenerator[Connection, None]:
        """Lend a connection; the driver's errors come out as the host's."""
        try:
            async with self._lent(name) as connection:
                yield connection
        except psycopg.Error as error:
            raise translated(error) from error

    def token(self, connection: Connection, tenant: str) -> str:
        """Sign a tenant for one connection."""
        return self._signed(connection, TENANT + tenant)

    def host_token(self, backend_pid: int) -> str:
        """Sign a token of the host for a connection that is not of the pool."""
        return self._key.token(backend_pid, int(time.time() + self._ahead) + LIFETIME_SECONDS, HOST)

    def _signed(self, connection: Connection, subject: str) -> str:
        key, now = (connection.info.backend_pid, subject), time.time() + self._ahead
        expires, token = self._tokens.get(key, (0.0, ""))
        if not LIFETIME_SECONDS / 2 < expires - now <= LIFETIME_SECONDS:
            if len(self._tokens) >= _TOKENS_KEPT:
                self._tokens.clear()
            expires = int(now) + LIFETIME_SECONDS
            token = self._key.token(key[0], expires, subject)
            self._tokens[key] = (expires, token)
        return token

    async def _read(self, tenant: str, sql: str, values: Sequence[Value]) -> list[Row]:
        async with self._lent(sql) as connection, connection.pipeline():
            await execute(connection, _SET_TOKEN, (self.token(connection, tenant),))
            return await (await execute(connection, sql, values)).fetchall()

    async def _call(self, tenant: str, sql: str, values: Sequence[Value]) -> list[Row]:
        async with self._lent(sql) as connection:
            given = (self.token(connection, tenant), *values)
            return await (await execute(connection, sql, given)).fetchall()

    async def _ask(self, sql: str, values: Sequence[Value]) -> list[Row]:
        async with self._lent(sql) as connection:
            return await self._unowned(connection, sql, values)

    async def _unowned(
        self, connection: Connection, sql: str, values: Sequence[Value]
    ) -> list[Row]:
        if _CROSSES_TENANTS not in sql:
            return await (await execute(connection, sql, values)).fetchall()
        async with connection.pipeline():
            await execute(connection, _SET_TOKEN, (self._signed(connection, HOST),))
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

    async def _again_if_cut_off(self, question: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
        """A question changes nothing, so it is asked once more when the connection was lost."""
        try:
            try:
                return await question()
            except psycopg.Error as error:
                if not is_disconnection(error):
                    raise
                await self.pool.check()
                return await question()
        except psycopg.Error as error:
            raise translated(error) from error

    async def _configure(self, connection: Connection) -> None:
        # One type for all numbers, so that a statement is prepared once and not once per size.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        hold_any_text(connection)
        [(clock,)] = await (await execute(connection, _CLOCK)).fetchall()
        self._ahead = clock - time.time()

    @asynccontextmanager
    async def _lent(self, name: str) -> AsyncGenerator[Connection, None]:
        if self._is_closed:
            raise PoolClosed("the store is closed")
        self.pool.require_connection()
        self._users += 1
        try:
            # A statement that is cut off costs its connection, and nobody knows what came of it.
            with anyio.CancelScope(shield=True):
                async with self.pool.connection() as connection:
                    with self._used(name):
                        try:
                            yield connection
                        except psycopg.Error as error:
                            if error.sqlstate == TOKEN_REFUSED:
                                # The next connection learns the server's time again.
                                await connection.close()
                            raise
        except errors.DiskFull:
            self._full_until = time.monotonic() + _FULL_SECONDS
            raise
        finally:
            self._users -= 1
            if self._is_closed and not self._users:
                self._unused.set()

    @contextmanager
    def _used(self, name: str) -> Generator[None, None, None]:
        """Count a connection as lent, and measure how long its statement takes."""
        self.pool.lent += 1
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.pool.lent -= 1
            self._log_if_slow(name, time.perf_counter() - begun)

    def _log_if_slow(self, name: str, seconds: float) -> None:
        """Log a slow statement, each at most once in a while."""
        limit = self._options.slow_statement_ms
        if not limit or seconds * 1000 < limit:
            return
        # The statement's own words: values travel apart from it.
        statement = " ".join(name.split())[:_LONGEST_NAME]
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


async def execute(
    connection: Connection, sql: str, values: Sequence[Value] = ()
) -> psycopg.AsyncCursor[Row]:
    """Send one statement, prepared after a few times; rows come in binary."""
    cursor = connection.cursor(binary=True)
    # As bytes: the driver's type for text takes literals only, and some of ours are put together.
    await cursor.execute(sql.encode(), values or None)
    return cursor


def _session(options: StoreOptions) -> tuple[str, ...]:
    """Settings of every connection; the role first, and nothing later goes back on it."""
    milliseconds = round(options.statement_timeout_seconds * 1000)
    return (
        f"role={SERVICE}",
        "search_path=wopr",
        f"statement_timeout={milliseconds}",
        f"lock_timeout={milliseconds}",
        f"idle_in_transaction_session_timeout={milliseconds}",
    )
