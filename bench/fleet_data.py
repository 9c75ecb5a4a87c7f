"""KAHN lines and runs for the benchmark, similar to those of a real fleet."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random

from bench.server import TENANT
from wopr.kahn.demo.generator import demo_runs
from wopr.kahn.lines import encode_line, read_line
from wopr.kahn.statistics import window_starts
from wopr.protocol.resources.fleet import AgentOutcome
from wopr.store.port import Store
from wopr.store.port.fleet import AgentRun, FleetRun, IngestBatch, NewLines

MIB = 1024 * 1024
AGENTS = 50
DAY_MS = 86_400_000
SPREAD_DAYS = 85
OUTCOMES: tuple[AgentOutcome, ...] = ("converged", "partial", "escaped", "aborted")
BATCH_SIZE = 2_000


def demo_lines() -> list[bytes]:
    """Return the lines of a demo over 60 days."""
    runs = demo_runs(until=datetime(2026, 3, 1, tzinfo=UTC), days=60)
    return [line for run in runs for line in run.lines]


def pushes(count: int) -> Iterator[bytes]:
    """Return bodies of 1 MiB. Each has many runs, and no two have the same run."""
    runs = [run.lines for run in demo_runs(until=datetime.now(UTC), days=60)]
    body: list[bytes] = []
    size = 0
    number = 0
    while count:
        for lines in runs:
            text = b"".join(_with_run_id(line, number) + b"\n" for line in lines)
            number += 1
            if size + len(text) > MIB:
                yield b"".join(body)
                count -= 1
                body, size = [], 0
                if not count:
                    return
            body.append(text)
            size += len(text)


def _with_run_id(line: bytes, number: int) -> bytes:
    return encode_line({**read_line(line).fields, "run_id": f"bench-{number}"})


async def put_fleet(store: Store, runs: int, now: int) -> None:
    """Write `runs` runs of fifty agents over the last twelve weeks."""
    random = Random(runs)
    for start in range(0, runs, BATCH_SIZE):
        new_lines = tuple(
            _new_lines(number, now, runs, random)
            for number in range(start, min(start + BATCH_SIZE, runs))
        )
        await store.fleet_ingest(TENANT, IngestBatch(new_lines=new_lines, since=window_starts(now)))


def _new_lines(number: int, now: int, runs: int, random: Random) -> NewLines:
    at = now - (runs - number) * SPREAD_DAYS * DAY_MS // runs
    run_id = f"run-{number}"
    outcome = random.choices(OUTCOMES, (80, 14, 2, 4))[0]
    agent = AgentRun(
        run_id=run_id,
        agent_id=f"agent-{number % AGENTS}",
        started_at=at,
        last_event=at,
        status="converged",
        task="bench",
        ended_at=at,
        outcome=outcome,
        duration_s=random.lognormvariate(4, 1),
        score=1.0 if outcome == "converged" else round(random.random(), 4),
    )
    run = FleetRun(
        run_id=run_id, kind="agent", source="push", lines=1, started_at=at, last_event=at
    )
    return NewLines(run=run, before=None, body=b"{}\n", hashes=bytes(16), agents=((None, agent),))
