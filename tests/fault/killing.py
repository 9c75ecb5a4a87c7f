"""A served host that can be killed at any time and started again on its data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.client import Wire
from tests.support.host import ACME, ServedHost


class KilledHost(ServedHost):
    """A host for a test that kills it."""

    def kill_and_restart(self) -> None:
        self.kill()
        self.start()

    def wire(self, key: str = ACME) -> Wire:
        return Wire(self.url, key)


@contextmanager
def mortal(data_dir: Path, **variables: str) -> Iterator[KilledHost]:
    """Serve a host that the block can kill."""
    host = KilledHost(data_dir, ("--conformance",), variables)
    host.start()
    try:
        yield host
    finally:
        if host.process is not None:
            host.stop()
