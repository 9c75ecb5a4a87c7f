"""A PostgreSQL server of one test, which is stopped and started during the test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil  # type: ignore[import-untyped]  # the package carries no types

from tests.support.postgres.cluster import Cluster, running_cluster
from tests.support.postgres.server import SETTINGS

_DEATH_SECONDS = 60


class OwnServer:
    """A server that is stopped, gracefully or not."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.url = cluster.url

    def stop(self) -> None:
        """Stop it like an administrator."""
        self._cluster.stop()

    def start(self) -> None:
        """Start it again."""
        self._cluster.start()

    def restart(self) -> None:
        """Stop it like an administrator, and start it again."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Kill it with all its child processes, and start it on its data."""
        children = psutil.Process(self._cluster.pid).children(recursive=True)
        self._cluster.stop(signal.SIGKILL)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        # It would not start while one of them still used its shared memory.
        assert psutil.wait_procs(children, timeout=_DEATH_SECONDS)[1] == []
        self._cluster.start()


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Run a server for the length of the block."""
    with running_cluster(SETTINGS) as cluster:
        yield OwnServer(cluster)
