"""Forks inside the test: created with the host's commands, followed to their end or wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tests.support.eventually import eventually_async
from tests.support.forks import EventContent
from tests.support.in_process import TENANT, Bench
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.forks import ForkMode, ForkRun, OptionsOverlay
from wopr.runs.interrupts.approvals import Resolver
from wopr.store.port import StoredEvent

ENDED = ("completed", "failed", "cancelled")
WAITING = ("waiting-approval", "waiting-input", "waiting-external")


def told(event: StoredEvent) -> tuple[str, str, bytes]:
    found = msgspec.json.decode(event.body, type=EventContent)
    return found.type, found.node_id, bytes(found.payload)


async def stored(bench: Bench, run_id: str) -> list[StoredEvent]:
    return await bench.host.store.read(TENANT, run_id, 0, 100_000)


async def log_content(bench: Bench, run_id: str) -> list[tuple[str, str, bytes]]:
    """Return a run's log without ids and times."""
    return [told(event) for event in await stored(bench, run_id)]


async def fork(
    bench: Bench,
    run_id: str,
    mode: ForkMode = "replay",
    from_seq: int = 0,
    *,
    configurable: JsonObject | None = None,
    tags: Iterable[str] = (),
) -> str:
    """Fork a run and return the fork's id at once."""
    request = ForkRun(
        mode=mode,
        from_seq=from_seq,
        run_options_overlay=OptionsOverlay(configurable=configurable or {}, tags=list(tags)),
    )
    answer: JsonObject = msgspec.json.decode(
        await bench.host.commands.fork(TENANT, run_id, request)
    )
    return str(answer["runId"])


async def forked(
    bench: Bench,
    run_id: str,
    mode: ForkMode = "replay",
    from_seq: int = 0,
    *,
    until: Sequence[str] = ENDED,
    configurable: JsonObject | None = None,
) -> str:
    """Fork a run and wait for the fork's end, or for another status."""
    found = await fork(bench, run_id, mode, from_seq, configurable=configurable)
    await bench.until(found, *until)
    return found


async def ended(bench: Bench, workflow_id: str, **configurable: Json) -> str:
    """Run a workflow to its end."""
    run_id = await bench.create(workflow_id, None, **configurable)
    await bench.until(run_id, *ENDED)
    return run_id


async def answer(bench: Bench, run_id: str, node_id: str, value: Json, name: str = "ada") -> None:
    """Answer a node once it waits."""

    async def is_waiting() -> bool:
        return (await bench.row(run_id)).status in WAITING

    await eventually_async(is_waiting)
    by = Resolver(name=name, role="admin")
    await bench.host.commands.resolve_interrupt(TENANT, run_id, node_id, value, by)
