"""Concurrent pauses at two processes: none survives the resume."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.second_writer import SecondWriter
from tests.support.definitions import node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Gates, two_benches
from wopr.protocol.runs import PauseRun

pytestmark = pytest.mark.anyio

AT_ONCE = PauseRun(drain_policy="immediate")
DRAINING = PauseRun()


async def never(*_: object) -> None:
    """Do nothing."""


@pytest.fixture
async def both(
    tmp_path: Path, gates: Gates, postgres_url: str
) -> AsyncIterator[tuple[Bench, Bench]]:
    """A process that executes nodes, and one that only answers requests."""
    async with two_benches(tmp_path, gates, postgres_url, second_executes=False) as running:
        yield running


@pytest.fixture
def worker(both: tuple[Bench, Bench]) -> Bench:
    return both[0]


@pytest.fixture
def api(both: tuple[Bench, Bench]) -> Bench:
    return both[1]


@pytest.fixture
async def run_id(worker: Bench, gates: Gates) -> str:
    """Start a run whose first node is in flight at the worker."""
    nodes = [node("wait", "test.gate"), node("next", "test.gate")]
    created = await worker.create(await worker.register(nodes))
    await gates.until_reached("wait")
    return created


async def until_no_pending_pause(bench: Bench, run_id: str) -> None:
    async def is_so() -> bool:
        return (await bench.row(run_id)).pending_command is None

    await eventually_async(is_so)


async def completes(worker: Bench, gates: Gates, run_id: str) -> None:
    """Check that the run continues to its end and was paused once."""
    gates.open("wait")
    gates.open("next")
    await worker.until(run_id, "completed")
    types = await worker.types(run_id)
    assert (types.count("run.paused"), types.count("run.resumed")) == (1, 1)


async def test_a_draining_pause_unknown_to_an_immediate_one_ends_with_the_resume(
    worker: Bench, api: Bench, run_id: str, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as deaf:
        deaf.setattr(worker.host.advancer.wakeups, "advance", never)
        await api.host.commands.pause(TENANT, run_id, DRAINING)
        await worker.host.commands.pause(TENANT, run_id, AT_ONCE)
        assert (await worker.row(run_id)).pending_command is not None

        await api.host.commands.resume(TENANT, run_id)

    await worker.wake(run_id)
    await completes(worker, gates, run_id)


async def test_a_draining_pause_unknown_to_a_resume_ends_with_it(
    worker: Bench, api: Bench, run_id: str, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as deaf:
        deaf.setattr(worker.host.advancer.wakeups, "advance", never)
        await api.host.commands.pause(TENANT, run_id, DRAINING)
        await worker.host.commands.pause(TENANT, run_id, AT_ONCE)
        await worker.host.commands.resume(TENANT, run_id)
        assert (await worker.row(run_id)).pending_command is not None

    await worker.wake(run_id)
    await until_no_pending_pause(worker, run_id)
    await completes(worker, gates, run_id)


async def test_a_process_with_a_pending_pause_drops_it_with_the_resume(
    worker: Bench, api: Bench, run_id: str, gates: Gates
) -> None:
    await api.host.commands.pause(TENANT, run_id, DRAINING)

    async def has_pending_pause() -> bool:
        return (await worker.loaded(run_id)).pending_pause is not None

    await eventually_async(has_pending_pause)
    for event_type in ("run.paused", "run.resumed"):
        SecondWriter(worker.database).append(run_id, event_type)

    await completes(worker, gates, run_id)


async def test_a_pause_after_the_resume_is_not_dropped_with_earlier_ones(
    worker: Bench, api: Bench, run_id: str, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as deaf:
        deaf.setattr(worker.host.advancer.wakeups, "advance", never)
        await api.host.commands.pause(TENANT, run_id, DRAINING)
        await worker.host.commands.pause(TENANT, run_id, AT_ONCE)
        await worker.host.commands.resume(TENANT, run_id)
        assert (await worker.row(run_id)).pending_command is not None

        await api.host.commands.pause(TENANT, run_id, DRAINING)

    await worker.wake(run_id)
    gates.open("wait")
    await worker.until(run_id, "paused")
    assert (await worker.types(run_id))[-2:] == ["node.completed", "run.paused"]
