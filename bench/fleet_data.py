"""KAHN lines and runs for the benchmark, as a fleet in use has them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random

from bench.server import TENANT
from wopr.fleet.demo import demo_runs
from wopr.fleet.lines import encode_line
from wopr.fleet.reading import read_line
from wopr.fleet.windows import since
from wopr.protocol.fleet import AgentOutcome
from wopr.store.port import Store
from wopr.store.port.fleet import AgentRun, FleetRun, Growth, IngestBatch

MIB = 1024 * 1024
AGENTS = 50
DAY_MS = 86_400_000
SPREAD_DAYS = 85
OUTCOMES: tuple[AgentOutcome, ...] = ("converged", "partial", "escaped", "aborted")
AT_ONCE = 2_000


def demo_lines() -> list[bytes]:
    """The lines of a demo over some weeks."""
    runs = demo_runs(until=datetime(2026, 3, 1, tzinfo=UTC), days=60)
    return [line for run in runs for line in run.lines]


def pushes(count: int) -> Iterator[bytes]:
    """Bodies of a mebibyte, each of many runs that no other has."""
    runs = [run.lines for run in demo_runs(until=datetime.now(UTC), days=60)]
    body: list[bytes] = []
    size = 0
    number = 0
    while count:
        for lines in runs:
            text = b"".join(_of_run(line, number) + b"\n" for line in lines)
            number += 1
            if size + len(text) > MIB:
                yield b"".join(body)
                count -= 1
                body, size = [], 0
                if not count:
                    return
            body.append(text)
            size += len(text)


def _of_run(line: bytes, number: int) -> bytes:
    return encode_line({**read_line(line).fields, "run_id": f"bench-{number}"})


async def put_fleet(store: Store, runs: int, now: int) -> None:
    """Keep so many runs of fifty agents, over twelve weeks up to now."""
    chance = Random(runs)
    for start in range(0, runs, AT_ONCE):
        growths = tuple(
            _growth(number, now, runs, chance)
            for number in range(start, min(start + AT_ONCE, runs))
        )
        await store.fleet_ingest(TENANT, IngestBatch(growths=growths, since=since(now)))


def _growth(number: int, now: int, runs: int, chance: Random) -> Growth:
    at = now - (runs - number) * SPREAD_DAYS * DAY_MS // runs
    run_id = f"run-{number}"
    outcome = chance.choices(OUTCOMES, (80, 14, 2, 4))[0]
    agent = AgentRun(
        run_id=run_id,
        agent_id=f"agent-{number % AGENTS}",
        started_at=at,
        last_event=at,
        status="converged",
        task="bench",
        ended_at=at,
        outcome=outcome,
        duration_s=chance.lognormvariate(4, 1),
        score=1.0 if outcome == "converged" else round(chance.random(), 4),
    )
    run = FleetRun(
        run_id=run_id, kind="agent", source="push", lines=1, started_at=at, last_event=at
    )
    return Growth(run=run, before=None, body=b"{}\n", hashes=bytes(16), agents=((None, agent),))
