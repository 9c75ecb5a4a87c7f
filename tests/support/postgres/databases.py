"""Databases for single tests, copied from a migrated one."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import anyio
import psycopg

from tests.support.postgres.server import shared_server
from wopr.store.postgres import PostgresStore

TEMPLATE = "wopr_template"
_LEAVING_SECONDS = 60.0
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'wopr' AND tablename <> 'migrations'"

_END_CONNECTIONS = """
SELECT pg_terminate_backend(pid, %s::bigint) FROM pg_stat_activity
WHERE datname = %s AND pid <> pg_backend_pid()
"""
_GROWTH = "SELECT pg_database_size(%s::name) - pg_database_size(%s::name)"
_MAX_GROWTH_BYTES = 4 * 1024 * 1024


class Databases:
    """Create databases on the session's server, as its administrator."""

    def __init__(self, folder: Path) -> None:
        self.server = shared_server(folder)
        self._free: list[str] = []
        with (folder / "template.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._ask("SELECT 1 FROM pg_database WHERE datname = %s", TEMPLATE):
                self._do(f"CREATE DATABASE {TEMPLATE}")
                # In a separate thread, because the first test may already have an event loop.
                with ThreadPoolExecutor(1) as aside:
                    aside.submit(anyio.run, _migrate, self.url(TEMPLATE)).result()

    def url(self, name: str, user: str = "postgres") -> str:
        """Return the URL of a database."""
        return self.server.replace("/postgres?", f"/{name}?").replace("postgres:@", f"{user}:@")

    @contextmanager
    def new(self, *, is_empty: bool = False) -> Iterator[str]:
        """Create a database and drop it at the end; migrated, unless it must be empty."""
        name = f"t_{uuid4().hex}"
        self._do_alone(f"CREATE DATABASE {name} TEMPLATE {'template0' if is_empty else TEMPLATE}")
        try:
            yield self.url(name)
        finally:
            self._do_alone(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def lent(self) -> Iterator[str]:
        """Lend a migrated database without any rows, and lend it again later.

        This is much quicker than `new`. Use that for a test that changes more than rows.
        """
        if self._free:
            name = self._free.pop()
        else:
            name = f"t_{uuid4().hex}"
            self._do_alone(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        try:
            yield self.url(name)
        finally:
            self._take_back(name)

    def _take_back(self, name: str) -> None:
        with _connected(self.url(name)) as connection:
            connection.execute(_END_CONNECTIONS, (_LEAVING_SECONDS * 1000, name))
            _delete_rows(connection)
            found = connection.execute(_GROWTH, (name, TEMPLATE)).fetchone()
        # Deleted rows stay in the files, and tests of many rows would slow down the next ones.
        if found is not None and found[0] < _MAX_GROWTH_BYTES:
            self._free.append(name)
        else:
            self._do_alone(f"DROP DATABASE {name} WITH (FORCE)")

    def empty(self, url: str) -> None:
        """Delete all rows of a database; much faster than creating one."""
        with _connected(url) as connection:
            _delete_rows(connection)

    def _do(self, statement: str) -> None:
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _do_alone(self, statement: str) -> None:
        """Repeat a statement that the server refuses while closed connections still exist."""
        deadline = time.monotonic() + _LEAVING_SECONDS
        while True:
            try:
                return self._do(statement)
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise

    def _ask(self, statement: str, value: str) -> bool:
        with psycopg.connect(self.server, autocommit=True) as connection:
            return connection.execute(statement.encode(), (value,)).fetchone() is not None


def _connected(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True, options="-c search_path=wopr")


def _delete_rows(connection: psycopg.Connection) -> None:
    names = connection.execute(_TABLES).fetchall()
    connection.execute("; ".join(f"DELETE FROM {name}" for (name,) in names).encode())


async def _migrate(url: str) -> None:
    store = await PostgresStore.open(url)
    await store.close()
