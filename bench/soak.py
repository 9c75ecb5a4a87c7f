"""`python -m bench.soak`: mixed load with hostile clients for a long time, evaluated at its end.

Normal clients of two tenants start runs, follow them, answer and annotate them. One client in
twenty is hostile and replays the attacks of `bench.attacks` with keys of other tenants. The exit
code is 1 if a normal client got an error other than 503 with `Retry-After`, if more than 1 % of the
responses were 503, if more than 1 % of the requests took longer than two seconds, if a connection
of a normal client failed, if a stream ended before its run, if an accepted run was lost, or if
memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
import psutil  # type: ignore[import-untyped]  # the package carries no types

from bench.attacks import ATTACKS, Attacker
from bench.server import scratch

NORMAL_KEYS: Final = ("test_soak_alice_0123456789abcdef", "test_soak_bob_0123456789abcdef")
HOSTILE_KEYS: Final = ("test_soak_mallory_0123456789abcdef", "test_soak_trudy_0123456789abcdef")
# Not the address of the attackers, so that limits per address do not affect normal clients.
NORMAL_ADDRESS: Final = "127.0.0.2"
MIB: Final = 1024 * 1024
TERMINAL: Final = ("completed", "failed", "cancelled")
# Memory does not grow if the median of the last third of the samples is at most this much above that
# of the first third.
MAX_GROWTH_MIB: Final = 48
MAX_GROWTH_SHARE: Final = 0.15
# Normal clients are served if at most this share of their requests gets 503, and at most 1 % of
# their requests take longer than this.
MAX_BUSY_SHARE: Final = 0.01
MAX_SECONDS: Final = 2.0
# The time that a run may take to end after the load.
SETTLE_SECONDS: Final = 180
_LISTENING: Final = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
_SERVE: Final = "from wopr.cli.main import main; main()"


@dataclass
class Findings:
    """The results of normal clients, the responses to attackers, and the memory of the host."""

    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    # Accepted runs of normal clients by id, with the key that started them.
    runs: dict[str, str] = field(default_factory=dict[str, str])
    lost: list[str] = field(default_factory=list[str])
    ended: Counter[str] = field(default_factory=Counter[str])
    attacks: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    memory_mib: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    # The durations of requests that do not wait for an event.
    seconds: list[float] = field(default_factory=list[float])

    def check_response(self, request: str, response: httpx.Response, text: str) -> None:
        """Count a response to a normal client. Raises `Refused` if it is an error."""
        status = response.status_code
        self.requests += 1
        self.statuses[str(status)] += 1
        if status < 400:
            return
        if status != 503 or "retry-after" not in response.headers:
            self.faults.append(f"{request}: {status} {text[:300]}")
        raise Refused(text)


class HostProcess:
    """A host process that can be killed and started again on its data and its port."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.is_up = False
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process and wait until it listens."""
        tenants = ("alice", "bob", "mallory", "trudy")
        keys = zip((*NORMAL_KEYS, *HOSTILE_KEYS), tenants, strict=True)
        others = {k: v for k, v in os.environ.items() if not k.startswith(("WOPR_", "OTEL_"))}
        environment = others | {
            "WOPR_DATA_DIR": str(self._directory / "data"),
            "WOPR_API_KEYS": ",".join(f"{key}:{tenant}:admin" for key, tenant in keys),
            "WOPR_LOG_LEVEL": "error",
        }
        command = ("-c", _SERVE, "serve", "--port", str(self.port), "--conformance")
        with (self._directory / "stderr.log").open("a") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        for line in self._process.stdout or ():
            if _LISTENING.search(line):
                self.is_up = True
                return
        raise RuntimeError(f"the host did not start: {self.errors()}")

    def kill(self) -> None:
        """Kill the process."""
        self.is_up = False
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def stop(self) -> None:
        """Stop the process."""
        self.is_up = False
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()

    def memory_mib(self) -> float:
        """Return the resident memory of the process and its children."""
        if self._process is None:
            return 0.0
        main = psutil.Process(self._process.pid)
        processes = [main, *main.children(recursive=True)]
        return float(sum(each.memory_info().rss for each in processes)) / MIB

    def errors(self) -> str:
        """Return the end of the host's log."""
        return (self._directory / "stderr.log").read_text()[-2000:]


class Refused(Exception):
    """An error response. The normal client stops its current action."""


class NormalClient:
    """A normal client. It does what users do, one action at a time."""

    def __init__(self, host: HostProcess, key: str, findings: Findings) -> None:
        self._host = host
        self._key = key
        self._findings = findings
        self._http = create_normal_http(host.port, key)
        self._own: list[str] = []

    async def work_until(self, is_over: Callable[[], bool]) -> None:
        """Do random actions with pauses."""
        while not is_over():
            action = random.choice(ACTIONS)
            was_up = self._host.is_up
            try:
                await action(self)
            except httpx.HTTPError as error:
                # A killed host does not respond until it is started again.
                if was_up and self._host.is_up:
                    self._findings.faults.append(f"{action.__name__}: {error!r}")
                await asyncio.sleep(1)
            except Refused:
                await asyncio.sleep(1)
            await asyncio.sleep(random.uniform(0.2, 1.5))
        await self._http.aclose()

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """Send a request. Raises `Refused` for an error response."""
        began = time.monotonic()
        response = await self._http.request(method, path, **options)
        if not path.endswith("/poll"):
            self._findings.seconds.append(time.monotonic() - began)
        self._findings.check_response(f"{method} {path}", response, response.text)
        return response.json()

    async def start(self, workflow_id: str, **body: Any) -> str:
        """Start a run and record that it was accepted."""
        request = {"workflowId": workflow_id, **body}
        accepted = await self.call("POST", "/v1/runs", json=request)
        return self._record_accepted(str(accepted["runId"]))

    def _record_accepted(self, run_id: str) -> str:
        self._findings.runs[run_id] = self._key
        self._own = [*self._own[-20:], run_id]
        return run_id

    async def poll(self, run_id: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Poll a run until a page matches."""
        last = -1
        while True:
            params = {"lastSequence": last, "timeout": 5}
            page: dict[str, Any] = await self.call(
                "GET", f"/v1/runs/{run_id}/events/poll", params=params
            )
            if wanted(page):
                return page
            last = page["lastEventSeq"]

    # Actions of users

    async def run(self) -> None:
        """Start a run and wait for its end."""
        names = ("hello", "conformance-noop", "conformance-multi-node", "conformance-failure")
        run_id = await self.start(random.choice(names))
        await self.poll(run_id, _is_over)
        await self.call("GET", f"/v1/runs/{run_id}")

    async def run_agent(self) -> None:
        """Run an agent with a scripted model."""
        names = ("conformance-agent-reasoning", "conformance-agent-identity")
        await self.poll(await self.start(random.choice(names)), _is_over)

    async def follow(self) -> None:
        """Follow a run over its event stream and check that no event is missing."""
        run_id = await self.start("conformance-delay", inputs={"delayMs": 300})
        path = f"/v1/runs/{run_id}/events?streamMode=debug"
        async with self._http.stream("GET", path) as response:
            self._findings.check_response(f"GET {path}", response, "")
            lines = [line async for line in response.aiter_lines()]
        ids = [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]
        is_complete = ids == list(range(len(ids))) and "event: run.completed" in lines
        if self._host.is_up and not is_complete:
            self._findings.faults.append(f"the stream of {run_id} is not complete: {ids}")

    async def approve(self) -> None:
        """Answer the interrupt of a run; leave some runs waiting."""
        run_id = await self.start("conformance-approval")
        await self.poll(run_id, lambda page: page["runStatus"] == "waiting-approval")
        if random.random() < 0.05:
            return
        waits = (await self.call("GET", f"/v1/runs/{run_id}"))["interrupt"]
        answer = {"resumeValue": {"action": "accept"}}
        await self.call("POST", f"/v1/runs/{run_id}/interrupts/{waits['nodeId']}", json=answer)
        await self.poll(run_id, _is_over)

    async def fork(self) -> None:
        """Fork an ended run."""
        run_id = await self.start("conformance-multi-node")
        await self.poll(run_id, _is_over)
        body = {"mode": "replay"}
        forked = await self.call("POST", f"/v1/runs/{run_id}:fork", json=body)
        await self.poll(self._record_accepted(str(forked["runId"])), _is_over)

    async def annotate(self) -> None:
        """Rate a run."""
        if not self._own:
            return
        path = f"/v1/runs/{random.choice(self._own)}/annotations"
        signal = {"kind": "rating", "rating": random.randint(1, 5)}
        await self.call("POST", path, json={"signal": signal})
        await self.call("GET", path)

    async def read_lists(self) -> None:
        """Read lists and the health."""
        await self.call("GET", "/v1/runs", params={"limit": 20})
        await self.call("GET", "/v1/interrupts")
        await self.call("GET", "/healthz")


Action: TypeAlias = Callable[[NormalClient], Awaitable[None]]
ACTIONS: Final[tuple[Action, ...]] = (
    NormalClient.run,
    NormalClient.run,
    NormalClient.run_agent,
    NormalClient.follow,
    NormalClient.approve,
    NormalClient.fork,
    NormalClient.annotate,
    NormalClient.read_lists,
)


def _is_over(page: dict[str, Any]) -> bool:
    return bool(page["isComplete"])


def create_normal_http(port: int, key: str) -> httpx.AsyncClient:
    """Return an HTTP client of a normal tenant, with its own address."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        headers={"Authorization": f"Bearer {key}"},
        transport=httpx.AsyncHTTPTransport(local_address=NORMAL_ADDRESS),
        timeout=60,
    )


async def soak(host: HostProcess, arguments: argparse.Namespace) -> Findings:
    """Load the host for the given time, then check every accepted run."""
    findings = Findings()
    began = time.monotonic()
    seconds = arguments.minutes * 60

    def is_over() -> bool:
        return bool(time.monotonic() - began >= seconds)

    hostile = max(1, arguments.clients // 20)
    normal = [
        NormalClient(host, NORMAL_KEYS[number % 2], findings)
        for number in range(arguments.clients - hostile)
    ]
    attackers = [
        Attacker(host.port, HOSTILE_KEYS[number % 2], findings.attacks, arguments.attack)
        for number in range(hostile)
    ]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_sample_memory(host, findings, began, is_over))
        if arguments.kill:
            tasks.create_task(_kill_in_the_middle(host, seconds / 2))
        for client in normal:
            tasks.create_task(client.work_until(is_over))
        for attacker in attackers:
            tasks.create_task(attacker.attack_until(is_over))
    await _check_runs(host, findings)
    return findings


async def _sample_memory(
    host: HostProcess, findings: Findings, began: float, is_over: Callable[[], bool]
) -> None:
    while not is_over():
        await asyncio.sleep(1)
        if host.is_up:
            with suppress(psutil.Error):
                findings.memory_mib.append((time.monotonic() - began, host.memory_mib()))


async def _kill_in_the_middle(host: HostProcess, seconds: float) -> None:
    await asyncio.sleep(seconds)
    host.kill()
    await asyncio.to_thread(host.start)


async def _check_runs(host: HostProcess, findings: Findings) -> None:
    """Check that every accepted run has a complete log and has ended or waits for a person."""
    waiting = list(findings.runs.items())

    async def check() -> None:
        clients = {key: create_normal_http(host.port, key) for key in NORMAL_KEYS}
        while waiting:
            run_id, key = waiting.pop()
            fault = await _fault_of(clients[key], run_id, findings)
            if fault:
                findings.lost.append(f"{run_id}: {fault}")
        for client in clients.values():
            await client.aclose()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(check())


async def _fault_of(http: httpx.AsyncClient, run_id: str, findings: Findings) -> str:
    status = ""
    for _ in range(SETTLE_SECONDS * 2):
        response = await http.get(f"/v1/runs/{run_id}")
        if response.status_code != 200:
            return f"status code {response.status_code}"
        status = response.json()["status"]
        if status in TERMINAL or status.startswith("waiting-"):
            break
        await asyncio.sleep(0.5)
    findings.ended[status] += 1
    headers = {"Accept": "application/json"}
    events = (await http.get(f"/v1/runs/{run_id}/events", headers=headers)).json()["events"]
    if [event["sequence"] for event in events] != list(range(len(events))):
        return "the log has a gap"
    is_settled = status in TERMINAL or status.startswith("waiting-")
    return "" if is_settled else f"still {status}"


def growth(samples: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median memory of the first and last third, and the growth in MiB per minute."""
    third = max(1, len(samples) // 3)
    first = statistics.median(mib for _, mib in samples[:third])
    last = statistics.median(mib for _, mib in samples[-third:])
    minutes = max(samples[-1][0] - samples[0][0], 1) * 2 / 3 / 60
    return first, last, (last - first) / minutes


def report(findings: Findings) -> bool:
    """Print the table and return whether all conditions are met."""
    first, last, slope = growth(findings.memory_mib)
    is_flat = last - first <= max(MAX_GROWTH_MIB, MAX_GROWTH_SHARE * first)
    slow, slowest = statistics.quantiles(findings.seconds, n=100)[-1], max(findings.seconds)
    busy = findings.statuses["503"] / max(1, findings.requests)
    is_served = busy <= MAX_BUSY_SHARE and slow <= MAX_SECONDS
    has_passed = is_served and not findings.faults and not findings.lost and is_flat
    rows = [
        ("requests of normal clients", str(findings.requests), ""),
        ("  by status", _format_counts(findings.statuses), ""),
        ("  responses with 503", f"{busy:.2%}", f"must be at most {MAX_BUSY_SHARE:.0%}"),
        ("  99th percentile", f"{slow:.2f} s", f"must be at most {MAX_SECONDS:.0f} s"),
        ("  maximum", f"{slowest:.1f} s", ""),
        ("  faults: errors, broken connections, gaps", str(len(findings.faults)), "must be 0"),
        ("accepted runs", str(len(findings.runs)), ""),
        ("  at the end", _format_counts(findings.ended), ""),
        ("  lost", str(len(findings.lost)), "must be 0"),
        ("memory, median of the first third", f"{first:.0f} MiB", ""),
        (
            "memory, median of the last third",
            f"{last:.0f} MiB",
            "does not grow" if is_flat else "GROWS",
        ),
        ("memory, growth", f"{slope:+.2f} MiB/min", ""),
    ]
    for attack in sorted({attack for attack, _ in findings.attacks}):
        results = Counter(
            {what: n for (name, what), n in findings.attacks.items() if name == attack}
        )
        rows.append((f"attackers: {attack}", _format_counts(results), ""))
    width = max(len(name) for name, _, _ in rows)
    for name, value, remark in rows:
        print(f"{name:<{width}}  {value}  {remark}".rstrip())
    for fault in (*findings.faults[:20], *findings.lost[:20]):
        print(f"  ! {fault}")
    print("passed" if has_passed else "FAILED")
    return has_passed


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in sorted(counts.items())) or "none"


def main() -> None:
    """Run the soak. The exit code is 1 if a condition is violated."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="how long; 30 by default")
    parser.add_argument("--clients", type=int, default=40, help="one in twenty is hostile")
    parser.add_argument("--kill", action="store_true", help="kill -9 and restart in the middle")
    parser.add_argument(
        "--attack", action="append", choices=sorted(ATTACKS), help="only this attack; repeatable"
    )
    arguments = parser.parse_args()
    with scratch() as directory:
        (directory / "data").mkdir()
        host = HostProcess(directory)
        host.start()
        try:
            has_passed = report(asyncio.run(soak(host, arguments)))
            if not has_passed:
                print(host.errors())
        finally:
            host.stop()
    sys.exit(0 if has_passed else 1)


if __name__ == "__main__":
    main()
