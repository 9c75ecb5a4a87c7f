"""Processes with different code on one database: each runs what it can, and no run is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.fault.apps import write_app
from tests.fault.cluster import cluster
from tests.support.definitions import edge, node, workflow
from tests.support.eventually import eventually_async
from tests.support.in_process import NOON, TENANT, Bench, Clock, Gates, bench, gate_types
from tests.support.postgres.databases import Databases
from wopr.nodes.registry import NodeType
from wopr.protocol.forks import ForkRun
from wopr.protocol.runs import PauseRun
from wopr.store.postgres.migrations import MIGRATIONS, migrate

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

RUNS = 12
THIRTY_DAYS_MS = 30 * 24 * 3_600_000


class Place:
    """A database for processes with different code."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._clock = Clock()
        self._number = 0

    @asynccontextmanager
    async def process(self, *types: NodeType, executes: bool = True) -> AsyncIterator[Bench]:
        """Run a process that has these node types beside the host's own."""
        async with bench(
            self._folder,
            *types,
            clock=self._clock,
            new_id=self._new_id,
            url=self._url,
            executes=executes,
        ) as running:
            yield running

    def _new_id(self) -> str:
        self._number += 1
        return f"id-{self._number:08d}"


@pytest.fixture
async def place(tmp_path: Path, databases: Databases) -> AsyncIterator[Place]:
    with databases.lent() as url:
        yield Place(tmp_path, url)


@pytest.fixture
def types(gates: Gates) -> tuple[NodeType, ...]:
    return gate_types(gates)


async def waits(bench: Bench, run_id: str) -> None:
    async def does() -> bool:
        return "waitingForCode" in await bench.snapshot(run_id)

    await eventually_async(does)


@pytest.mark.parametrize("executes", [True, False])
async def test_a_process_without_a_node_type_leaves_the_run_to_one_that_has_it(
    place: Place, types: tuple[NodeType, ...], gates: Gates, executes: bool
) -> None:
    async with place.process(*types) as able, place.process(executes=executes) as bare:
        gates.open("wait")
        workflow_id = await able.register(
            [node("first"), node("wait", "test.gate"), node("last")],
            edges=[edge("first", "wait"), edge("wait", "last")],
        )
        runs = [await bare.create(workflow_id) for _ in range(RUNS)]

        for run_id in runs:
            await bare.until(run_id, "completed", "failed")
            assert (await bare.row(run_id)).status == "completed"


async def test_a_run_continues_when_a_process_with_its_code_appears(
    place: Place, types: tuple[NodeType, ...], gates: Gates
) -> None:
    async with place.process() as bare:
        async with place.process(*types) as able:
            workflow_id = await able.register([node("wait", "test.gate")])
        run_id = await bare.create(workflow_id)
        await waits(bare, run_id)
        gates.open("wait")

        async with place.process(*types):
            await bare.until(run_id, "completed")

        assert "waitingForCode" not in await bare.snapshot(run_id)


async def test_a_running_node_without_a_holder_is_called_when_its_code_is_back(
    place: Place, types: tuple[NodeType, ...], gates: Gates
) -> None:
    async with place.process() as bare:
        async with place.process(*types) as able:
            run_id = await able.create(await able.register([node("wait", "test.gate")]))
            await gates.until_reached("wait")
        # The process with the node in flight has released it unfinished.
        await waits(bare, run_id)
        gates.open("wait")

        async with place.process(*types):
            await bare.until(run_id, "completed")
            assert (await bare.types(run_id)).count("node.started") == 1


async def test_a_node_in_flight_elsewhere_does_not_wait_for_code_of_other_nodes(
    place: Place, types: tuple[NodeType, ...], gates: Gates
) -> None:
    async with place.process(*types) as able, place.process(executes=False) as bare:
        workflow_id = await able.register(
            [node("wait", "test.gate"), node("after", "test.gate")], edges=[]
        )
        run_id = await able.create(workflow_id)
        await gates.until_reached("wait")
        await bare.host.commands.pause(TENANT, run_id, PauseRun())

        assert "waitingForCode" not in await bare.snapshot(run_id)
        for name in ("wait", "after"):
            gates.open(name)
        await bare.until(run_id, "paused", "completed")


async def test_a_replay_waits_for_the_code_of_its_nodes(
    place: Place, types: tuple[NodeType, ...], gates: Gates
) -> None:
    async with place.process() as bare:
        gates.open("wait")
        async with place.process(*types) as able:
            run_id = await able.create(await able.register([node("wait", "test.gate")]))
            await able.until(run_id, "completed")
        body = await bare.host.commands.fork(TENANT, run_id, ForkRun(mode="replay"))
        replay_id = str(msgspec.json.decode(body)["runId"])
        await waits(bare, replay_id)

        async with place.process(*types):
            await bare.until(replay_id, "completed")
        assert "replay.diverged" not in await bare.types(replay_id)


async def test_a_run_stranded_by_an_older_version_continues_after_the_migration(
    tmp_path: Path, databases: Databases, types: tuple[NodeType, ...], gates: Gates
) -> None:
    with databases.lent() as current, databases.new(is_empty=True) as url:
        async with Place(tmp_path, current).process(*types) as writing:
            run_id = await writing.create(await writing.register([node("wait", "test.gate")]))
            await gates.until_reached("wait")
        await copy_to_older_schema(current, url)
        await strand(url, run_id)
        gates.open("wait")

        async with Place(tmp_path, url).process(*types) as host:
            await host.until(run_id, "completed")


async def copy_to_older_schema(current: str, url: str) -> None:
    """Copy workflows, runs and events to a database from before runs could wait for code."""
    steps = [migration.name for migration in MIGRATIONS]
    async with (
        await psycopg.AsyncConnection.connect(current, autocommit=True) as source,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as target,
    ):
        await migrate(target, MIGRATIONS[: steps.index("node_code")])
        for table in ("workflows", "runs", "events"):
            empty = await target.execute(f"SELECT * FROM wopr.{table}".encode())
            names = ", ".join(column.name for column in empty.description or ())
            rows = await source.execute(f"SELECT {names} FROM wopr.{table}".encode())
            async for row in rows:
                values = ", ".join(["%s"] * len(row))
                into = f"INSERT INTO wopr.{table} ({names}) OVERRIDING SYSTEM VALUE"
                await target.execute(f"{into} VALUES ({values})".encode(), row)


async def strand(url: str, run_id: str) -> None:
    """Leave a run as an older worker without its node type did: no holder, and no job for weeks."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        found = await connection.execute(
            "UPDATE wopr.runs SET holder = NULL, wake_at = %s WHERE run_id = %s RETURNING status",
            (NOON + THIRTY_DAYS_MS, run_id),
        )
        assert await found.fetchone() == ("running",)
        jobs = await connection.execute("SELECT count(*) FROM wopr.procrastinate_jobs")
        assert await jobs.fetchone() == (0,)


def test_a_rolling_deployment_with_a_new_node_type_loses_no_run(
    tmp_path: Path, databases: Databases
) -> None:
    old = write_app(tmp_path / "old", "reserve")
    new = write_app(tmp_path / "new", "reserve", "ship")
    nodes = [node("reserve", "shop.reserve"), node("ship", "shop.ship")]
    first = workflow(nodes[:1], id="order", version="1.0.0")
    second = workflow(nodes, id="order", version="2.0.0", edges=[edge("reserve", "ship")])
    with databases.lent() as url, cluster(url, tmp_path / "cluster", apis=0, workers=0) as ours:
        api = ours.api("--no-worker", WOPR_APP=str(old))
        workers = [ours.worker(WOPR_APP=str(old), WOPR_CODE_VERSION="v1") for _ in range(2)]
        api.wire.register(first)
        runs = [api.wire.create("order") for _ in range(RUNS)]

        # The API starts first, with runs that only the next workers can execute.
        api = ours.api("--no-worker", WOPR_APP=str(new))
        ours.apis[0].end()
        api.wire.register(second)
        runs += [api.wire.create("order") for _ in range(RUNS)]
        for worker in workers:
            ours.worker(WOPR_APP=str(new), WOPR_CODE_VERSION="v2")
            runs += [api.wire.create("order") for _ in range(RUNS)]
            worker.end()

        ended = [api.wire.finished(run_id) for run_id in runs]
        assert [run["status"] for run in ended] == ["completed"] * len(runs)
        shipped = [run["nodeStates"]["ship"] for run in ended if "ship" in run["nodeStates"]]
        assert {node["codeVersion"] for node in shipped} == {"v2"}
        assert len(shipped) == 3 * RUNS
        found = api.wire.document("/v1/processes")
        assert found["codeVersions"] == [{"codeVersion": "v2", "processes": 2}]
        assert found["waitingRuns"] == []
        ours.check()
