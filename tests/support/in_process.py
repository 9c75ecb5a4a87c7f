"""A host inside the test, with a controlled clock, predictable ids, and gates for nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import anyio
import msgspec

from tests.support.definitions import workflow
from tests.support.eventually import eventually_async
from wopr.engine.outcome import Completed, Outcome, Waiting
from wopr.host.assembly import running_host
from wopr.host.host import Host
from wopr.nodes.builtin import builtin_registry
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.process.settings import Settings
from wopr.process.sources import Sources
from wopr.protocol.documents import JsonObject
from wopr.protocol.events import RunEvent
from wopr.protocol.runs import CreateRun, Owner
from wopr.runs.active import ActiveRun
from wopr.runs.requests import NewRun
from wopr.store.port import RunRow

TENANT = "acme"
NOON = 1_800_000_000_000
DEADLINE_SECONDS = 60
LINES = 20
# Nodes that wait at a closed gate at the end of the test need not be waited for.
DRAIN_SECONDS = 0.5


class Clock:
    """A clock that the test controls."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> int:
        return self.now


class Gates:
    """Places where nodes of a test wait: a test waits until one is reached, and opens it."""

    def __init__(self) -> None:
        self.reached: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self.opened: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self.children: list[str] = []

    async def wait_at(self, name: str) -> None:
        self.reached[name].set()
        await self.opened[name].wait()

    async def until_reached(self, name: str) -> None:
        with anyio.fail_after(DEADLINE_SECONDS):
            await self.reached[name].wait()

    def open(self, name: str) -> None:
        self.opened[name].set()


class Bench:
    """A running host with helpers for tests."""

    def __init__(self, host: Host, clock: Clock, database: Path | str) -> None:
        self.host = host
        self.clock = clock
        # A file, or the URL of a database on a server.
        self.database = database

    async def register(self, nodes: Iterable[JsonObject], **fields: object) -> str:
        """Register a workflow of these nodes and return its id."""
        definition = workflow(list(nodes), **fields)
        await self.host.library.register(TENANT, definition)
        return str(definition["id"])

    async def create(
        self, workflow_id: str, inputs: JsonObject | None = None, **configurable: object
    ) -> str:
        """Start a run and return its id."""
        new = NewRun(
            request=CreateRun(
                workflow_id=workflow_id, inputs=inputs or {}, configurable=configurable
            ),
            compiled=await self.host.library.newest(TENANT, workflow_id),
            owner=Owner(tenant=TENANT),
        )
        accepted: JsonObject = msgspec.json.decode(await self.host.commands.create(new))
        return str(accepted["runId"])

    async def log(self, run_id: str) -> list[RunEvent]:
        """Return the stored log of a run, checked for gaps."""
        stored = await self.host.store.read(TENANT, run_id, 0, 10_000)
        assert [event.sequence for event in stored] == list(range(len(stored)))
        return [msgspec.json.decode(event.body, type=RunEvent) for event in stored]

    async def types(self, run_id: str) -> list[str]:
        return [event.type for event in await self.log(run_id)]

    async def row(self, run_id: str) -> RunRow:
        row = await self.host.store.run(TENANT, run_id)
        assert row is not None
        return row

    async def wake(self, run_id: str) -> None:
        """Advance a run now, like its timer."""
        await self.host.advancer.wakeups.advance_now(TENANT, run_id)

    async def until(self, run_id: str, *statuses: str) -> None:
        """Wait until the run has one of these statuses."""

        async def is_there() -> bool:
            return (await self.row(run_id)).status in statuses

        await eventually_async(is_there)

    async def until_logged(self, run_id: str, event_type: str, times: int = 1) -> None:
        """Wait until the log has that many events of a type."""

        async def is_there() -> bool:
            return (await self.types(run_id)).count(event_type) >= times

        await eventually_async(is_there)

    async def snapshot(self, run_id: str) -> JsonObject:
        """Return the run's snapshot."""
        found = await self.host.run_reader.snapshot(TENANT, run_id)
        document: JsonObject = msgspec.json.decode(found.body)
        return document

    async def loaded(self, run_id: str) -> ActiveRun:
        run = await self.host.advancer.active.load(TENANT, run_id)
        assert run is not None
        # A task that has just committed may not have continued yet.
        async with run.lock:
            return run


def numbered() -> Callable[[], str]:
    """Return ids that show their order of creation."""
    numbers = count()
    return lambda: f"id-{next(numbers):08d}"


@asynccontextmanager
async def bench(
    data_dir: Path,
    *types: NodeType,
    clock: Clock | None = None,
    new_id: Callable[[], str],
    url: str = "",
    executes: bool = True,
    max_held_runs: int = 1000,
    max_held_bytes: int = 512 * 1024 * 1024,
    inline_value_bytes: int = 256 * 1024,
) -> AsyncGenerator[Bench, None]:
    """Run a host with these node types beside its own, on SQLite unless another URL is given."""
    registry = builtin_registry(with_conformance=True)
    for node_type in types:
        registry.add(node_type)
    clock = clock or Clock()
    settings = Settings(
        data_dir=data_dir,
        db=url,
        api_keys=f"test_key_0123456789:{TENANT}",
        drain_seconds=DRAIN_SECONDS,
        executes=executes,
        max_held_runs=max_held_runs,
        max_held_bytes=max_held_bytes,
        inline_value_bytes=inline_value_bytes,
    )
    sources = Sources(now=clock, new_id=new_id)
    async with running_host(settings, sources, registry) as host:
        yield Bench(host, clock, url or data_dir / "wopr.db")


@asynccontextmanager
async def two_benches(
    data_dir: Path, gates: Gates, url: str, *, second_executes: bool = True
) -> AsyncGenerator[tuple[Bench, Bench], None]:
    """Run two hosts on one database of a server with the same time."""
    types, clock, new_id = gate_types(gates), Clock(), numbered()
    async with (
        bench(data_dir, *types, clock=clock, new_id=new_id, url=url) as one,
        bench(
            data_dir, *types, clock=clock, new_id=new_id, url=url, executes=second_executes
        ) as two,
    ):
        yield one, two


def gate_types(gates: Gates) -> tuple[NodeType, ...]:
    """Return node types that wait at gates, with work before and after."""

    async def gate(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        ctx.log("info", f"before {ctx.attempt}")
        await gates.wait_at(ctx.node_id)
        ctx.log("info", f"after {ctx.attempt}")
        ctx.set_variable("passed", ctx.node_id)
        return Completed({"attempt": ctx.attempt})

    async def talk(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        ctx.log("info", "before")
        await ctx.flush()
        await gates.wait_at(ctx.node_id)
        ctx.log("info", "after")
        await ctx.flush()
        return Completed()

    async def clingy(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        """Stop slowly when interrupted."""
        try:
            await gates.wait_at(f"{ctx.node_id}-{ctx.attempt}")
        finally:
            with anyio.CancelScope(shield=True):
                await gates.wait_at(f"{ctx.node_id}-{ctx.attempt}-stops")
        return Completed()

    async def slow_parent(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Outcome:
        """Start to wait for its child after the child has ended."""
        if ctx.children:
            return Completed({"child": ctx.children[0].status})
        gates.children.append(await ctx.spawn(config["workflowId"], {}))
        await gates.wait_at(ctx.node_id)
        return Waiting()

    nodes = (gate, talk, clingy, slow_parent, duet, chatter)
    return tuple(
        NodeType(type_id=f"test.{execute.__name__}", execute=execute, is_async=True)
        for execute in nodes
    )


async def duet(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Flush from two tasks at once."""

    async def voice(name: str) -> None:
        for number in range(LINES):
            ctx.log("info", f"{name}{number}")
            await ctx.flush()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(voice, "a")
        tasks.start_soon(voice, "b")
    return Completed()


async def chatter(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
    """Flush endlessly."""
    while True:
        ctx.log("info", "and another thing")
        await ctx.flush()
