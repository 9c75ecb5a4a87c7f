"""A host served by the real command in a separate process on loopback."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.forked import WOPR as WOPR
from tests.support.forked import Process, run, start

ACME = "test_acme_admin_key"
GLOBEX = "test_globex_admin"
LIVE = "live_acme_admin_key"
VIEWER = "test_acme_viewer"
REVIEWER = "test_acme_reviewer"
OPERATOR = "test_acme_operator"
DEVELOPER = "test_acme_developer"
INGEST = "test_acme_ingest"
# A key of the operator to read metrics.
METRICS = "test_ops_metrics_key"
ROLES = {
    "admin": ACME,
    "operator": OPERATOR,
    "developer": DEVELOPER,
    "reviewer": REVIEWER,
    "viewer": VIEWER,
    "ingest": INGEST,
}
KEYS = (LIVE, GLOBEX, METRICS, *ROLES.values())
API_KEYS = ",".join(
    [
        f"{LIVE}:acme:admin",
        f"{GLOBEX}:globex:admin",
        f"{METRICS}:ops:metrics",
        *(f"{key}:acme:{role}" for role, key in ROLES.items()),
    ]
)
STOP_SECONDS = 60


def environment(data_dir: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's variables without settings of another host."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WOPR_", "OTEL_"))}
    own = {
        "WOPR_DATA_DIR": str(data_dir),
        "WOPR_API_KEYS": API_KEYS,
        # All tests come from one address, and many of them have no valid key.
        "WOPR_FAILED_AUTH_LIMIT": "0",
        "WOPR_OPEN_RATE_LIMIT": "0",
    }
    return kept | own | dict(variables)


def kept_port() -> int:
    """Return a free port outside the ephemeral range, so that a host can use it again."""
    while True:
        port = random.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass
class ServedHost:
    """A running host: its address, its files, and its process."""

    data_dir: Path
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict[str, str])
    url: str = ""
    process: Process | None = None

    @property
    def stderr_file(self) -> Path:
        return self.data_dir / "stderr.log"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def log(self) -> str:
        """Return the host's standard error so far."""
        return self.stderr_file.read_text()

    def start(self) -> None:
        """Start it and wait for the address that it prints."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.stderr_file.open("a") as stderr:
            arguments = ("serve", "--port", "0", *self.options)
            self.process = start(arguments, environment(self.data_dir, self.variables), stderr)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r"listening on (http://\S+)", line)
            if found is not None:
                self.url = found[1]
                return
        # Without this wait, the process would disturb an unrelated test.
        process, self.process = self.process, None
        process.communicate(timeout=STOP_SECONDS)
        raise AssertionError(f"the host did not start: {self.log()}")

    def stop(self) -> None:
        """Stop it gracefully and check that it logged no errors."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_SECONDS)
        log = self.log()
        assert process.returncode == 0, log
        assert "Traceback" not in log
        assert not [key for key in KEYS if key in log]

    def kill(self) -> None:
        """End the process with SIGKILL."""
        process, self.process = self.process, None
        assert process is not None
        process.kill()
        process.communicate(timeout=STOP_SECONDS)

    def restart(self) -> None:
        """Stop it and start it on the same data; its address changes."""
        self.stop()
        self.start()

    def command(self, *arguments: str) -> str:
        """Run another `wopr` command on this host's data and return what it printed."""
        kept = {k: v for k, v in self.variables.items() if k == "WOPR_DB"}
        done = run(arguments, environment(self.data_dir, kept))
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def served(data_dir: Path, *options: str, **variables: str) -> Iterator[ServedHost]:
    """Serve a host for as long as the block lasts."""
    host = ServedHost(data_dir, options, variables)
    host.start()
    try:
        yield host
    finally:
        if host.process is not None and host.process.poll() is None:
            host.stop()
        elif host.process is not None:
            raise AssertionError(f"the host died: {host.log()}")
