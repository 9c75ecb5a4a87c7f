"""A served host that can be killed at any time, and started again on its data."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from tests.fault.checker import problems
from tests.support.client import Wire
from tests.support.forked import Process, start
from tests.support.host import ACME, ServedHost, environment

DEADLINE_SECONDS = 60.0


@dataclass
class FragileHost(ServedHost):
    """A host whose process is killed or stopped by a test."""

    _wire: Wire | None = None

    @property
    def db(self) -> Path:
        return self.data_dir / "wopr.db"

    @property
    def database(self) -> Path | str:
        """Return the checker's argument: the file, or the URL of a database server."""
        return self.variables.get("WOPR_DB") or self.db

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    @property
    def wire(self) -> Wire:
        """Return a client of the host as it runs now."""
        if self._wire is None:
            self._wire = Wire(self.url, ACME)
        return self._wire

    def hang_up(self) -> None:
        """Close the client."""
        if self._wire is not None:
            self._wire.http.close()
            self._wire = None

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.hang_up()
        super().kill()

    def stop(self) -> None:
        """Stop it gracefully."""
        self.hang_up()
        super().stop()

    def ask_to_stop(self) -> None:
        """Send the signal without waiting."""
        self.running.send_signal(signal.SIGTERM)

    def wait_for_exit(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait until the process has ended by itself, and return its exit code."""
        process, self.process = self.running, None
        process.communicate(timeout=seconds)
        self.hang_up()
        return process.wait()

    def launch(self) -> None:
        """Start a process without waiting for its address."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.stderr_file.open("a") as stderr:
            arguments = ("serve", "--port", "0", *self.options)
            self.process = start(arguments, environment(self.data_dir, self.variables), stderr)

    def check(self) -> None:
        """Stop the host if it runs, and check its database."""
        if self.process is not None:
            self.stop()
        assert problems(self.database) == []
        assert "Traceback" not in self.log()
