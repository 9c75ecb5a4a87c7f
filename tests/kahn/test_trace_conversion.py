"""When traces are converted, and that a host which dies or fails meanwhile pushes the same once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.kahn.spans import TRACE
from tests.support.otlp_spans import as_protobuf, export, otlp_span
from wopr.kahn.ingest import Ingest, LineWriter
from wopr.kahn.otlp.service import FAILED_MS, RETENTION_MS, TraceIntake, TraceProjection
from wopr.kahn.projection_queue import SWEEP_SECONDS
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.errors import Unavailable
from wopr.store.port.fleet import IngestBatch
from wopr.store.port.traces import StoredTrace
from wopr.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

TENANT = "acme"
RUN = f"otel-{TRACE}"
SETTLE, QUIET = 1000, 60_000
AGENT: JsonObject = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "lead"}
TOOL: JsonObject = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}


class HostDied(Exception):
    """The host dies here."""


class FragileStore(SqliteStore):
    """A store whose host dies, or that is unavailable, around the next push."""

    fault: Exception | None = None
    dies_after = False
    namesakes: frozenset[str] = frozenset()

    async def fleet_ingest(self, tenant: str, batch: IngestBatch) -> None:
        if self.fault is not None:
            raise self.fault
        await super().fleet_ingest(tenant, batch)
        if self.dies_after:
            raise HostDied

    async def fleet_host_run_ids(self, tenant: str, run_ids: Sequence[str]) -> set[str]:
        return set(self.namesakes)


class Bench:
    """The part of a host that stores and converts traces, with a clock of the test."""

    def __init__(self, store: FragileStore) -> None:
        self.store = store
        self.now = 1_800_000_100_000
        self.start()

    def start(self) -> None:
        """Start like a host that has only its store."""
        self.intake = TraceIntake(
            self.store,
            self._clock,
            lambda _, text: text,
            settle_ms=SETTLE,
            keeps_content=False,
            wake=lambda: None,
        )
        ingest = Ingest(LineWriter(self.store, self._clock))
        self.teller = TraceProjection(
            self.store, ingest, self._clock, settle_ms=SETTLE, quiet_ms=QUIET
        )

    def _clock(self) -> int:
        return self.now

    async def send(self, *spans: JsonObject) -> None:
        await self.intake.take(TENANT, as_protobuf(export(*spans)), "protobuf")

    async def wait(self, millis: int) -> None:
        """Let time pass, and convert due traces."""
        self.now += millis
        while await self.teller.catch_up() == 0.0:
            pass

    async def lines(self, run_id: str = RUN) -> list[bytes]:
        pieces = [piece async for piece in self.store.fleet_lines(TENANT, run_id)]
        return b"".join(pieces).splitlines()

    async def trace(self) -> StoredTrace | None:
        return await self.store.trace(TENANT, TRACE)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    opened = await FragileStore.open(str(tmp_path / "wopr.db"))
    assert isinstance(opened, FragileStore)
    yield Bench(opened)
    await opened.close()


def other(number: int, parent: int = 0, **changed: Json) -> JsonObject:
    return otlp_span(number, parent, {}, **changed)


async def test_a_complete_trace_is_converted_once_nothing_has_arrived_for_a_moment(
    bench: Bench,
) -> None:
    await bench.send(otlp_span(2, 1, AGENT))
    await bench.wait(SETTLE - 1)
    await bench.send(other(1))
    await bench.wait(SETTLE - 1)
    assert await bench.lines() == []

    await bench.wait(1)

    assert len(await bench.lines()) == 2


async def test_a_trace_without_its_root_waits_until_no_more_spans_arrive(bench: Bench) -> None:
    await bench.send(otlp_span(2, 1, AGENT))
    await bench.wait(QUIET - 1)
    assert await bench.lines() == []

    await bench.wait(1)

    assert len(await bench.lines()) == 2


async def test_the_next_check_is_when_a_trace_is_due(bench: Bench) -> None:
    assert await bench.teller.catch_up() == SWEEP_SECONDS

    await bench.send(other(1))

    assert await bench.teller.catch_up() == SETTLE / 1000


async def test_a_trace_without_agents_is_dropped(bench: Bench) -> None:
    await bench.send(other(1), other(2, 1))
    await bench.wait(SETTLE)
    assert await bench.trace() is not None

    await bench.wait(QUIET)

    assert await bench.trace() is None
    assert await bench.lines() == []


async def test_a_trace_is_kept_for_a_day_after_its_conversion(bench: Bench) -> None:
    await bench.send(otlp_span(1, 0, AGENT))
    await bench.wait(SETTLE)
    await bench.wait(RETENTION_MS - 1)
    assert await bench.trace() is not None

    await bench.wait(1)

    assert await bench.trace() is None
    assert len(await bench.lines()) == 2


@pytest.mark.parametrize("dies_after", [False, True])
async def test_a_host_that_dies_around_the_push_pushes_the_same_lines_once(
    bench: Bench, dies_after: bool
) -> None:
    bench.store.fault = None if dies_after else HostDied()
    bench.store.dies_after = dies_after
    await bench.send(otlp_span(1, 0, AGENT), otlp_span(2, 1, TOOL))
    await bench.wait(SETTLE)
    # Spans that arrive before the next attempt are not mixed with the sealed ones.
    await bench.send(otlp_span(3, 1, TOOL | {"gen_ai.tool.name": "late"}))
    bench.store.fault, bench.store.dies_after = None, False
    bench.start()

    await bench.wait(FAILED_MS + SETTLE)

    *before, late = await bench.lines()
    assert len([line for line in before if b"agent_run_end" in line]) == 1
    assert b'"tool_name":"late"' not in b"".join(before)
    assert b"otel:late" in late


async def test_an_unavailable_store_is_waited_for(bench: Bench) -> None:
    bench.store.fault = Unavailable("the disk is full")
    await bench.send(otlp_span(1, 0, AGENT))
    with pytest.raises(Unavailable):
        await bench.wait(SETTLE)
    bench.store.fault = None

    await bench.wait(0)

    assert len(await bench.lines()) == 2


async def test_a_trace_refused_by_the_fleet_is_dropped_and_delays_no_other(
    bench: Bench,
) -> None:
    await bench.send(otlp_span(1, 0, AGENT), otlp_span(2, 1, TOOL))
    await bench.wait(SETTLE)
    await bench.wait(RETENTION_MS)
    before = await bench.lines()
    # Deleted by now, and converted again with another past.
    await bench.send(otlp_span(1, 0, AGENT), otlp_span(9, 1, TOOL))
    await bench.send(otlp_span(1, 0, AGENT, trace_id="ab" * 16))

    await bench.wait(SETTLE)

    assert await bench.lines() == before
    assert len(await bench.lines(f"otel-{'ab' * 16}")) == 2


async def test_spans_exported_by_this_host_are_not_converted_again(bench: Bench) -> None:
    bench.store.namesakes = frozenset({"run-1"})
    await bench.send(otlp_span(1, 0, AGENT | {"openwop.run_id": "run-1"}))

    await bench.wait(SETTLE)

    assert await bench.lines() == []
    found = await bench.trace()
    assert found is not None
    assert found.projected == 1
