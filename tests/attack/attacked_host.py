"""A host under attack, and an honest client of another tenant that must be served meanwhile.

The host is a separate process. The tests measure it from outside: by responses to requests, and by
the memory that the operating system reports.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from tests.support.client import TERMINAL, Wire
from tests.support.eventually import eventually
from tests.support.fragile_host import FragileHost
from tests.support.host import METRICS
from wopr.process.settings import Settings

# Keys of the attacking tenant `mallory`, and of the honest tenant `alice`.
MALLORY = "test_mallory_admin_key_0123456789"
MALLORY_VIEWER = "test_mallory_viewer_key_0123456789"
ALICE = "test_alice_admin_key_0123456789"
API_KEYS = (
    f"{MALLORY}:mallory:admin,{MALLORY_VIEWER}:mallory:viewer,{ALICE}:alice:admin,"
    f"{METRICS}:ops:metrics"
)

# Another loopback address than the attacker's, so that limits per address distinguish the two.
HONEST_ADDRESS = "127.0.0.2"
HEALTH_SECONDS = 2.0
ACCEPT_SECONDS = 20.0
RECOVERY_SECONDS = 20.0
PAUSE_SECONDS = 0.1
MIB = 1024 * 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class AttackedHost(FragileHost):
    """A host with an attacking and an honest tenant."""

    def client(self, key: str | None = MALLORY) -> Wire:
        """Return a client of the attacker, or one without a key."""
        return Wire(self.url, key)

    def memory_mib(self) -> float:
        """Return the resident memory of the host and its child processes, in MiB."""
        return sum(_resident_mib(pid) for pid in _family(self.running.pid))

    def kill_and_recover(self) -> None:
        """Kill the process; the next one must be healthy and accept a run within 20 seconds."""
        self.kill()
        deadline = time.monotonic() + RECOVERY_SECONDS
        self.start()
        with honest_http(self.url) as http:
            eventually(lambda: _accepts(http), deadline - time.monotonic())


@dataclass
class HonestClient:
    """Check the host's health and start runs repeatedly during an attack.

    Leaving the block fails unless every run was accepted and completed, and the host was always
    healthy. A health check that takes longer than two seconds is repeated once, because the
    machine may be busy with other tests.
    """

    host: AttackedHost
    runs: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])
    rounds: int = 0
    peak_mib: float = 0.0

    def __enter__(self) -> HonestClient:
        self._http = honest_http(self.host.url)
        self.first_mib = self.host.memory_mib()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="honest client", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5 * ACCEPT_SECONDS)
        try:
            if failure is None:
                self._judge()
        finally:
            self._http.close()

    @property
    def growth_mib(self) -> float:
        """Return the largest growth of the host's memory since the client began."""
        return self.peak_mib - self.first_mib

    def is_healthy(self) -> bool:
        """Return whether the host answers a health check in time, over a new connection."""
        transport = httpx.HTTPTransport(local_address=HONEST_ADDRESS)
        try:
            with httpx.Client(transport=transport, timeout=HEALTH_SECONDS) as http:
                return http.get(f"{self.host.url}/healthz").status_code == 200
        except httpx.HTTPError:
            return False

    def start_run(self) -> bool:
        """Return whether the host accepts a run."""
        try:
            answer = self._http.post("/v1/runs", json={"workflowId": "hello"})
        except httpx.HTTPError as error:
            self.faults.append(f"a run was not accepted: {error!r}")
            return False
        if answer.status_code != 201:
            self.faults.append(f"a run was answered {answer.status_code}: {answer.text}")
            return False
        self.runs.append(answer.json()["runId"])
        return True

    def wait_for_round(self) -> None:
        """Wait until the client has been served once more, or has found a fault."""
        seen = self.rounds
        eventually(lambda: self.rounds > seen + 1 or bool(self.faults))

    def _work(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            if not self.is_healthy() and not self.is_healthy():
                self.faults.append("two health checks in a row were not answered in time")
            self.start_run()
            self.peak_mib = max(self.peak_mib, self.host.memory_mib())
            self.rounds += 1

    def _judge(self) -> None:
        if self.faults:
            raise AssertionError("; ".join(self.faults))
        if not self.runs:
            raise AssertionError("the attack was over before a run of the honest client began")
        for run_id in self.runs:
            eventually(partial(self._has_ended, run_id))
        statuses = {self._status(run_id) for run_id in self.runs}
        if statuses != {"completed"}:
            raise AssertionError(f"runs of the honest client ended as {statuses}")

    def _has_ended(self, run_id: str) -> bool:
        return self._status(run_id) in TERMINAL

    def _status(self, run_id: str) -> str:
        return str(self._http.get(f"/v1/runs/{run_id}").raise_for_status().json()["status"])


def honest_http(url: str) -> httpx.Client:
    """Return a client of the honest tenant with its own address."""
    return httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {ALICE}"},
        transport=httpx.HTTPTransport(local_address=HONEST_ADDRESS),
        timeout=ACCEPT_SECONDS,
    )


def _accepts(http: httpx.Client) -> bool:
    """Return whether the host is healthy and accepts a run."""
    try:
        health = http.get("/healthz", timeout=HEALTH_SECONDS)
        return health.is_success and http.post("/v1/runs", json={"workflowId": "hello"}).is_success
    except httpx.HTTPError:
        return False


def _family(pid: int) -> list[int]:
    """Return this process and all its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in _family(int(child)))]


def _resident_mib(pid: int) -> float:
    """Return the resident memory of a process; 0 for an ended one."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * PAGE_BYTES / MIB


def new_host(data_dir: Path, options: tuple[str, ...], variables: dict[str, str]) -> AttackedHost:
    """Start a host with the default limits, including the limit that other tests disable."""
    defaults = {
        "WOPR_API_KEYS": API_KEYS,
        "WOPR_FAILED_AUTH_LIMIT": str(Settings().failed_auth_limit),
        "WOPR_OPEN_RATE_LIMIT": str(Settings().open_rate_limit),
    }
    return AttackedHost(data_dir, options, defaults | variables)


@contextmanager
def attacked(data_dir: Path, *options: str, **variables: str) -> Iterator[AttackedHost]:
    """Serve a host to attack for the length of the block, then check its database."""
    host = new_host(data_dir, options, variables)
    host.start()
    try:
        yield host
    except BaseException:
        if host.process is not None:
            host.kill()
        raise
    if host.running.poll() is not None:
        raise AssertionError(f"the host died: {host.log()}")
    host.check()
