"""A served host that can be killed at any moment, and started again on what it left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fault.checker import problems
from tests.forked import Process, start
from tests.wire.client import Wire
from tests.wire.host import ACME, ServedHost, environment

DEADLINE_SECONDS = 60.0


@dataclass
class FragileHost(ServedHost):
    """A host whose process ends in other ways than by being asked to."""

    _wire: Wire | None = None

    @property
    def db(self) -> Path:
        return self.data_dir / "wopr.db"

    @property
    def database(self) -> Path | str:
        """What the checker reads: the file, or the URL of a database server."""
        return self.variables.get("WOPR_DB") or self.db

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    @property
    def wire(self) -> Wire:
        """A caller of the host as it runs now."""
        if self._wire is None:
            self._wire = Wire(self.url, ACME)
        return self._wire

    def hang_up(self) -> None:
        """Let go of the caller."""
        if self._wire is not None:
            self._wire.http.close()
            self._wire = None

    def kill(self) -> None:
        """End the process as a power cut would."""
        self.hang_up()
        process, self.process = self.running, None
        process.kill()
        process.communicate(timeout=DEADLINE_SECONDS)

    def stop(self) -> None:
        """Stop it the polite way."""
        self.hang_up()
        super().stop()

    def ask_to_stop(self) -> None:
        """Send the signal and do not wait."""
        self.running.send_signal(signal.SIGTERM)

    def wait_for_exit(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait until the process has ended by itself, and return its exit code."""
        process, self.process = self.running, None
        process.communicate(timeout=seconds)
        self.hang_up()
        return process.wait()

    def launch(self) -> None:
        """Start a process without waiting until it serves."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.stderr_file.open("a") as stderr:
            arguments = ("serve", "--port", "0", *self.options)
            self.process = start(arguments, environment(self.data_dir, self.variables), stderr)

    def check(self) -> None:
        """Stop the host if it runs, and find nothing wrong with what it leaves behind."""
        if self.process is not None:
            self.stop()
        assert problems(self.database) == []
        assert "Traceback" not in self.log()


def eventually(is_so: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.01)
