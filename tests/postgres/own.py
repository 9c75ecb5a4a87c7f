"""A PostgreSQL of a test's own, to be stopped and started while it is in use."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil  # type: ignore[import-untyped]  # the package carries no types

from tests.postgres.cluster import Cluster, running_cluster
from tests.postgres.server import SETTINGS

_DEATH_SECONDS = 60


class OwnServer:
    """A server that goes away when told, politely or not."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.url = cluster.url

    def stop(self) -> None:
        """Stop it as an administrator does."""
        self._cluster.stop()

    def start(self) -> None:
        """Start it again."""
        self._cluster.start()

    def restart(self) -> None:
        """Stop it as an administrator does, and start it again."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Kill it with all of its children, and start it on what it left behind."""
        children = psutil.Process(self._cluster.pid).children(recursive=True)
        self._cluster.stop(signal.SIGKILL)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        # It would not start while one of them still had its memory.
        assert psutil.wait_procs(children, timeout=_DEATH_SECONDS)[1] == []
        self._cluster.start()


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Run a server for as long as the block lasts."""
    with running_cluster(SETTINGS) as cluster:
        yield OwnServer(cluster)
