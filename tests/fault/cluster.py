"""Several processes on one PostgreSQL database: some serve requests, some only execute."""

from __future__ import annotations

import base64
import re
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import msgspec
import psycopg

from tests.fault.checker import Stored, problems
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually
from tests.support.forked import start
from tests.support.fragile_host import DEADLINE_SECONDS, FragileHost
from tests.support.host import environment
from wopr.protocol.documents import JsonObject

LOCAL = "-c search_path=wopr"
TERMINAL = {"completed", "failed", "cancelled"}


@dataclass
class Member(FragileHost):
    """One process of several; a worker serves only its health."""

    command_name: str = "serve"

    def launch(self) -> None:
        """Start a process without waiting for its address."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.stderr_file.open("a") as stderr:
            arguments = (self.command_name, "--port", "0", *self.options)
            self.process = start(arguments, environment(self.data_dir, self.variables), stderr)

    def start(self) -> None:
        """Start it and wait for the address that it prints."""
        self.launch()
        self.until_up()

    def until_up(self) -> None:
        """Wait for the address that it prints."""
        stdout = self.running.stdout
        assert stdout is not None
        for line in stdout:
            if found := re.search(r"(?:listening|health is) on (http://[^/\s]+)", line):
                self.url = found[1]
                return
        raise AssertionError(f"the process did not start: {self.log()}")

    def signal(self, number: signal.Signals) -> None:
        self.running.send_signal(number)

    def end(self) -> None:
        """Stop it if it runs; errors logged during a database outage are allowed."""
        if self.process is None:
            return
        self.hang_up()
        process, self.process = self.process, None
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, self.log()


@dataclass
class Cluster:
    """Processes that share a database, and queries on the database."""

    url: str
    folder: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])
    apis: list[Member] = field(default_factory=list[Member])
    workers: list[Member] = field(default_factory=list[Member])

    def api(self, *options: str, **variables: str) -> Member:
        """Start another process that serves requests."""
        self.apis.append(self._launched("serve", f"api{len(self.apis)}", options, variables))
        self.apis[-1].until_up()
        return self.apis[-1]

    def worker(self, **variables: str) -> Member:
        """Start another process that only executes."""
        self.workers.append(self._launched("worker", f"worker{len(self.workers)}", (), variables))
        self.workers[-1].until_up()
        return self.workers[-1]

    def start(self, apis: int, workers: int, *options: str) -> None:
        """Start several at the same time."""
        self.apis = [self._launched("serve", f"api{n}", options, {}) for n in range(apis)]
        self.workers = [self._launched("worker", f"worker{n}", (), {}) for n in range(workers)]
        for member in self.members:
            member.until_up()

    @property
    def members(self) -> list[Member]:
        return [*self.apis, *self.workers]

    def _launched(
        self, command: str, name: str, options: tuple[str, ...], variables: dict[str, str]
    ) -> Member:
        member = Member(
            self.folder / name,
            ("--conformance", *options),
            {"WOPR_DB": self.url, **self.variables, **variables},
            command_name=command,
        )
        member.launch()
        return member

    # Queries

    def rows(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, options=LOCAL) as connection:
            return connection.execute(statement, values).fetchall()

    def one(self, statement: LiteralString, *values: object) -> Any:
        [row] = self.rows(statement, *values)
        return row[0]

    def holder(self, run_id: str) -> str | None:
        found: str | None = self.one("SELECT holder FROM runs WHERE run_id = %s", run_id)
        return found

    def holder_of(self, run_id: str) -> Member:
        """Return the process that executes a run, once one does."""
        found: list[Member] = []

        def is_held() -> bool:
            # One query: with a second one, the run could already be at another process.
            pid = _pid(self.holder(run_id) or "")
            found.extend(m for m in self.members if m.process is not None and m.process.pid == pid)
            return bool(found)

        eventually(is_held)
        return found[0]

    def status(self, run_id: str) -> str:
        return str(self.one("SELECT status FROM runs WHERE run_id = %s", run_id))

    def unfinished(self) -> int:
        return int(self.one("SELECT count(*) FROM runs WHERE ended_at IS NULL"))

    def until_over(self, *run_ids: str, seconds: float = 120.0) -> None:
        """Wait until these runs, or all runs, have ended."""

        def is_over() -> bool:
            if not run_ids:
                return self.unfinished() == 0
            return all(self.status(run_id) in TERMINAL for run_id in run_ids)

        eventually(is_over, seconds)

    def events(self, run_id: str) -> list[str]:
        rows = self.rows("SELECT type FROM events WHERE run_id = %s ORDER BY sequence", run_id)
        return [row[0] for row in rows]

    def chunks(self, run_id: str) -> list[str]:
        """Return the output chunks of a streaming node."""
        rows = self.rows(
            "SELECT body FROM events WHERE run_id = %s AND type = 'output.chunk' ORDER BY sequence",
            run_id,
        )
        return [str(msgspec.json.decode(body)["payload"]["chunk"]) for (body,) in rows]

    def check(self) -> None:
        """Stop all processes, and check the database that they leave behind."""
        # Live processes clean up after dead ones, which takes them a few seconds.
        eventually(self._knows_the_living_only)
        self.end()
        assert problems(self.url) == []
        assert self.rows("SELECT run_id FROM runs WHERE holder IS NOT NULL") == []
        assert self.rows("SELECT process_id FROM processes") == []

    def _knows_the_living_only(self) -> bool:
        living = {member.process.pid for member in self.members if member.process is not None}
        known = {
            _pid(process_id) for (process_id,) in self.rows("SELECT process_id FROM processes")
        }
        return not living or known <= living

    def stored(self) -> Stored:
        return Stored(self.url)

    def end(self) -> None:
        for member in self.members:
            member.end()


def _pid(process_id: str) -> int | None:
    """Return the process of a name in the database."""
    return int(process_id.split("-")[-2]) if process_id else None


def stream_text(member: FragileHost, tokens: int, delay_ms: int) -> str:
    """Start a run whose one node streams for a while.

    Like the conformance workflow of this name, but with enough time for a busy machine.
    """
    says = {"promptId": "conformance.stream-text-noop", "expectsStreaming": True}
    name = member.wire.register(
        workflow([node("ai", "core.ai.callPrompt", config=says)], id="patient-stream-text")
    )
    config: JsonObject = {"tokens": [str(n) for n in range(tokens)], "delayMsPerToken": delay_ms}
    provider: JsonObject = {"id": "stream-text", "config": config}
    return member.wire.create(name, configurable={"mockProvider": provider})


@contextmanager
def cluster(
    url: str,
    folder: Path,
    *,
    apis: int = 2,
    workers: int = 2,
    api_options: tuple[str, ...] = (),
    **variables: str,
) -> Iterator[Cluster]:
    """Run several processes; those still running at the end of the block are stopped."""
    host_key = base64.b64encode(secrets.token_bytes(32)).decode()
    ours = Cluster(url, folder, {"WOPR_HOST_KEY": host_key, "WOPR_DRAIN_SECONDS": "2", **variables})
    try:
        ours.start(apis, workers, *api_options)
        yield ours
    finally:
        for member in ours.members:
            if member.process is not None:
                member.process.send_signal(signal.SIGCONT)
                member.kill()
