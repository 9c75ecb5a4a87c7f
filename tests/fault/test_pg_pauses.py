"""Pauses that two processes are asked for at the same time: none outlives the resume."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.inprocess import TENANT, Bench, Gates, eventually, two_benches
from tests.fault.rival import Rival
from tests.wire.definitions import node
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
    """A run whose first node is in flight at the worker."""
    nodes = [node("wait", "test.gate"), node("next", "test.gate")]
    created = await worker.create(await worker.register(nodes))
    await gates.until_reached("wait")
    return created


async def until_no_wish_is_left(bench: Bench, run_id: str) -> None:
    async def is_so() -> bool:
        return (await bench.row(run_id)).wish is None

    await eventually(is_so)


async def completes(worker: Bench, gates: Gates, run_id: str) -> None:
    """See the run go on to its end, and its one pause."""
    gates.open("wait")
    gates.open("next")
    await worker.until(run_id, "completed")
    types = await worker.types(run_id)
    assert (types.count("run.paused"), types.count("run.resumed")) == (1, 1)


async def test_a_draining_pause_that_an_immediate_one_did_not_know_of_ends_with_the_resume(
    worker: Bench, api: Bench, run_id: str, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as deaf:
        deaf.setattr(worker.host.advancer.wakeups, "advance", never)
        await api.host.commands.pause(TENANT, run_id, DRAINING)
        await worker.host.commands.pause(TENANT, run_id, AT_ONCE)
        assert (await worker.row(run_id)).wish is not None

        await api.host.commands.resume(TENANT, run_id)

    await worker.wake(run_id)
    await completes(worker, gates, run_id)


async def test_a_draining_pause_that_a_resume_did_not_know_of_ends_with_it(
    worker: Bench, api: Bench, run_id: str, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as deaf:
        deaf.setattr(worker.host.advancer.wakeups, "advance", never)
        await api.host.commands.pause(TENANT, run_id, DRAINING)
        await worker.host.commands.pause(TENANT, run_id, AT_ONCE)
        await worker.host.commands.resume(TENANT, run_id)
        assert (await worker.row(run_id)).wish is not None

    await worker.wake(run_id)
    await until_no_wish_is_left(worker, run_id)
    await completes(worker, gates, run_id)


async def test_a_process_that_has_a_pause_in_mind_forgets_it_with_the_resume(
    worker: Bench, api: Bench, run_id: str, gates: Gates
) -> None:
    await api.host.commands.pause(TENANT, run_id, DRAINING)

    async def has_it_in_mind() -> bool:
        return (await worker.loaded(run_id)).pausing is not None

    await eventually(has_it_in_mind)
    for event_type in ("run.paused", "run.resumed"):
        Rival(worker.database).append(run_id, event_type)

    await completes(worker, gates, run_id)


async def test_a_pause_after_the_resume_is_none_of_those_before(
    worker: Bench, api: Bench, run_id: str, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as deaf:
        deaf.setattr(worker.host.advancer.wakeups, "advance", never)
        await api.host.commands.pause(TENANT, run_id, DRAINING)
        await worker.host.commands.pause(TENANT, run_id, AT_ONCE)
        await worker.host.commands.resume(TENANT, run_id)
        assert (await worker.row(run_id)).wish is not None

        await api.host.commands.pause(TENANT, run_id, DRAINING)

    await worker.wake(run_id)
    gates.open("wait")
    await worker.until(run_id, "paused")
    assert (await worker.types(run_id))[-2:] == ["node.completed", "run.paused"]
