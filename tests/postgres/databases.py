"""Databases of a test's own, copied from one that is migrated already."""

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

from tests.postgres.server import shared_server
from wopr.store.postgres import PostgresStore

TEMPLATE = "wopr_template"
_LEAVING_SECONDS = 60.0
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'wopr' AND tablename <> 'migrations'"


class Databases:
    """Makes databases on the session's server, whose administrator the tests are."""

    def __init__(self, folder: Path) -> None:
        self.server = shared_server(folder)
        with (folder / "template.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._ask("SELECT 1 FROM pg_database WHERE datname = %s", TEMPLATE):
                self._do(f"CREATE DATABASE {TEMPLATE}")
                # In a thread of its own, because the first test may have a loop already.
                with ThreadPoolExecutor(1) as aside:
                    aside.submit(anyio.run, _migrate, self.url(TEMPLATE)).result()

    def url(self, name: str, user: str = "postgres") -> str:
        """The URL of a database."""
        return self.server.replace("/postgres?", f"/{name}?").replace("postgres:@", f"{user}:@")

    @contextmanager
    def new(self, *, is_empty: bool = False) -> Iterator[str]:
        """Make a database and drop it at the end; migrated, unless it is to be empty."""
        name = f"t_{uuid4().hex}"
        self._do_alone(f"CREATE DATABASE {name} TEMPLATE {'template0' if is_empty else TEMPLATE}")
        try:
            yield self.url(name)
        finally:
            self._do_alone(f"DROP DATABASE {name} WITH (FORCE)")

    def empty(self, url: str) -> None:
        """Take every row out of a database; quicker than a new one by far."""
        with psycopg.connect(url, autocommit=True, options="-c search_path=wopr") as connection:
            names = connection.execute(_TABLES).fetchall()
            connection.execute("; ".join(f"DELETE FROM {name}" for (name,) in names).encode())

    def _do(self, statement: str) -> None:
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _do_alone(self, statement: str) -> None:
        """Do what the server refuses while anybody who was told to go is still there."""
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


async def _migrate(url: str) -> None:
    store = await PostgresStore.open(url)
    await store.close()
