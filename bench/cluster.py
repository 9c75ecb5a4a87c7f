"""A PostgreSQL server with production durability settings, and a database in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psutil  # type: ignore[import-untyped]  # the package carries no types
import psycopg
from tests.support.postgres.cluster import Cluster, running_cluster

_SETTINGS = """
max_connections = 200
shared_buffers = 256MB
max_wal_size = 2GB
checkpoint_timeout = 15min
"""


class Database:
    """A database on its own server."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.url = cluster.url.replace("/postgres?", f"/{name}?")
        self._server = psutil.Process(cluster.pid)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes of the server, ended ones included."""
        own = self._server.cpu_times()
        spent = own.user + own.system + own.children_user + own.children_system
        for child in self._server.children(recursive=True):
            times = child.cpu_times()
            spent += times.user + times.system
        return float(spent)

    def value(self, query: str) -> object:
        """Return the single value of a query."""
        with psycopg.connect(self.url, options="-c search_path=wopr") as connection:
            row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


@contextmanager
def running_database() -> Iterator[Database]:
    """Start a server that syncs each commit to disk, and create an empty database on it."""
    with running_cluster(_SETTINGS) as cluster:
        name = f"bench_{uuid4().hex}"
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        yield Database(cluster, name)
