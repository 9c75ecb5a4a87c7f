"""A tenant with many runnable runs does not delay another tenant's runs."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.conftest import Database
from tests.support.definitions import delay, node, workflow
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Clock, Gates, bench, gate_types, numbered
from wopr.cluster.local_wakeups import LocalWakeups
from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.offloading import offload_to_thread
from wopr.protocol.runs import CreateRun, Owner
from wopr.runs.requests import NewRun
from wopr.store.port.usage import QuotaRow

pytestmark = pytest.mark.anyio

OTHER = "umbrella"
BACKLOG = 1500
SLEEP_MS = 60_000
# More runs than this process advances concurrently.
MANY = 80


@pytest.fixture
def may_end() -> Iterator[threading.Event]:
    """Ends the long checks of a test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def checking(
    tmp_path: Path, may_end: threading.Event, new_database: Callable[[], Database]
) -> AsyncIterator[Bench]:
    """Run a host whose `test.check` nodes need a check that lasts until the test ends it."""

    def wait() -> bool:
        return may_end.wait(50)

    def check(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        return Completed({"isDone": offload_to_thread(wait, ctx.run_id.encode())})

    node_type = NodeType(type_id="test.check", execute=check)
    with new_database() as variables:
        url = variables.get("WOPR_DB", "")
        async with bench(tmp_path, node_type, new_id=numbered(), url=url) as running:
            yield running


async def create(ours: Bench, tenant: str, workflow_id: str) -> str:
    compiled = await ours.host.library.newest(tenant, workflow_id)
    new = NewRun(
        request=CreateRun(workflow_id=workflow_id), compiled=compiled, owner=Owner(tenant=tenant)
    )
    return str(msgspec.json.decode(await ours.host.commands.create(new))["runId"])


async def until_ended(ours: Bench, run_id: str) -> None:
    """Wait until a run of the other tenant has ended."""

    async def has_ended() -> bool:
        row = await ours.host.store.run(OTHER, run_id)
        return row is not None and row.status == "completed"

    await eventually_async(has_ended)


async def until_all_ended(ours: Bench) -> None:
    async def have_ended() -> bool:
        return not await ours.host.store.open_run_counts()

    await eventually_async(have_ended)


async def until_some_ended(ours: Bench) -> None:
    """Wait until the first of many runs have ended."""

    async def have_ended() -> bool:
        return sum((await ours.host.store.open_run_counts()).values()) < MANY

    await eventually_async(have_ended)


async def limit_events(ours: Bench, per_second: int) -> None:
    """Set the rate of the tenant with many runs; 0 is no limit."""
    quota = QuotaRow(tenant=TENANT, key_id="", quota="eventsPerSecond", amount=per_second)
    await ours.host.store.set_quota(quota)
    await ours.host.quotas.read()


def pass_time(ours: Bench) -> None:
    """Make the sleeping runs due."""
    ours.clock.now += SLEEP_MS
    source = ours.host.advancer.wakeups.source
    if isinstance(source, LocalWakeups):
        source.clock_changed()


async def test_a_run_of_another_tenant_ends_before_most_of_a_large_backlog(ours: Bench) -> None:
    definition = workflow([delay("sleep", SLEEP_MS)])
    for tenant in (TENANT, OTHER):
        await ours.host.library.register(tenant, definition)
    for _ in range(BACKLOG):
        await create(ours, TENANT, str(definition["id"]))
    # Its timer is the last of all.
    ours.clock.now += 1
    theirs = await create(ours, OTHER, str(definition["id"]))

    pass_time(ours)
    await until_ended(ours, theirs)

    still_open = sum((await ours.host.store.open_run_counts()).values())
    assert still_open > BACKLOG // 2


async def test_long_checks_of_one_tenant_do_not_delay_the_timers_of_another(
    checking: Bench, may_end: threading.Event
) -> None:
    checks = workflow([delay("sleep", SLEEP_MS), node("check", "test.check")])
    sleeps = workflow([delay("sleep", SLEEP_MS)])
    await checking.host.library.register(TENANT, checks)
    await checking.host.library.register(OTHER, sleeps)
    for _ in range(MANY):
        await create(checking, TENANT, str(checks["id"]))
    pass_time(checking)
    theirs = await create(checking, OTHER, str(sleeps["id"]))
    pass_time(checking)

    await until_ended(checking, theirs)

    # No run of the first tenant ends before its check does.
    assert sum((await checking.host.store.open_run_counts()).values()) == MANY
    may_end.set()
    await until_all_ended(checking)


async def test_a_tenant_over_its_rate_does_not_delay_the_timers_of_another(
    ours: Bench,
) -> None:
    definition = workflow([delay("sleep", SLEEP_MS), *(node(f"step-{n}") for n in range(9))])
    for tenant in (TENANT, OTHER):
        await ours.host.library.register(tenant, definition)
    for _ in range(MANY):
        await create(ours, TENANT, str(definition["id"]))
    await limit_events(ours, 1)
    pass_time(ours)
    await until_some_ended(ours)
    theirs = await create(ours, OTHER, str(definition["id"]))
    pass_time(ours)

    await until_ended(ours, theirs)

    assert sum((await ours.host.store.open_run_counts()).values()) > 0
    await limit_events(ours, 0)
    await until_all_ended(ours)


async def test_a_tenant_over_its_rate_does_not_delay_the_recovery_of_another_s_runs(
    tmp_path: Path, gates: Gates, new_database: Callable[[], Database]
) -> None:
    sleeps = workflow([delay("sleep", SLEEP_MS), *(node(f"step-{n}") for n in range(9))])
    waits = workflow([node("wait", "test.gate")])
    clock, new_id, types = Clock(), numbered(), gate_types(gates)
    with new_database() as variables:
        url = variables.get("WOPR_DB", "")
        async with bench(tmp_path, *types, clock=clock, new_id=new_id, url=url) as first:
            await first.host.library.register(TENANT, sleeps)
            await first.host.library.register(OTHER, waits)
            for _ in range(MANY):
                await create(first, TENANT, str(sleeps["id"]))
            theirs = await create(first, OTHER, str(waits["id"]))
            await gates.until_reached("wait")
            await limit_events(first, 1)
        clock.now += SLEEP_MS
        gates.open("wait")

        async with bench(tmp_path, *types, clock=clock, new_id=new_id, url=url) as second:
            await until_ended(second, theirs)

            assert sum((await second.host.store.open_run_counts()).values()) > 0
            await limit_events(second, 0)
            await until_all_ended(second)
