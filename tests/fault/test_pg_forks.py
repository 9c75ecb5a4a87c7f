"""Forks on a shared store: the history is copied first, whichever process starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.fault.forking import ended, fork, log_content
from tests.support.definitions import node
from tests.support.in_process import TENANT, Bench, Gates, two_benches
from tests.support.postgres.databases import Databases
from wopr.protocol.runs import PauseRun

pytestmark = pytest.mark.anyio

NOW = PauseRun(drain_policy="immediate")
# A prefix that is copied in several appends.
MANY = 250
PREFIX = 451


@pytest.fixture
async def both(
    tmp_path: Path, gates: Gates, databases: Databases
) -> AsyncIterator[tuple[Bench, Bench]]:
    """Run two processes without a queue."""
    with databases.lent() as url:
        async with two_benches(tmp_path, gates, url) as running:
            for each in running:
                await each.host.advancer.wakeups.source.stop()
            yield running


async def long_run(bench: Bench) -> str:
    return await ended(bench, await bench.register([node(f"step{n}") for n in range(MANY)]))


async def test_a_fork_paused_at_once_has_its_whole_history(
    both: tuple[Bench, Bench],
) -> None:
    one, two = both
    source = await long_run(one)
    branch = await fork(one, source, "branch", PREFIX)

    await two.host.commands.pause(TENANT, branch, NOW)

    log = await log_content(two, branch)
    assert log[:PREFIX] == (await log_content(two, source))[:PREFIX]
    assert [event[0] for event in log[PREFIX:]] == ["run.paused"]
    await two.host.commands.resume(TENANT, branch)
    await two.until(branch, "completed")


async def test_a_fork_that_two_processes_copy_at_once_is_copied_once(
    both: tuple[Bench, Bench],
) -> None:
    one, two = both
    source = await long_run(one)
    branch = await fork(one, source, "branch", PREFIX)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.wake, branch)
        tasks.start_soon(two.wake, branch)

    assert (await one.row(branch)).status == "completed"
    assert (await log_content(two, branch))[:PREFIX] == (await log_content(two, source))[:PREFIX]
