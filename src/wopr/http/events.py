"""A run's events: live over SSE, as one JSON document, or by long poll."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, TypeAlias

import anyio
import msgspec

from wopr.http.answers import Answer, Later, Stream
from wopr.http.exchange import Exchange, whole_number
from wopr.http.frames import Framer
from wopr.http.operation import Operation, Parameter
from wopr.http.runs import RUN_ERRORS, run_id
from wopr.protocol.documents import encode
from wopr.protocol.events import RUN_TERMINAL_TYPES
from wopr.protocol.runs import TERMINAL, EventPage
from wopr.protocol.streams import MODES, carries, parse_modes
from wopr.runtime.bus import Notice
from wopr.store.port import RunRow, StoredEvent

LONGEST_BUFFER_MS = 5000
POLL_DEFAULT, POLL_MOST = 30, 60
KEEPALIVE = b":keepalive\n\n"
# A batch of this many bytes is sent although its time is not up.
BATCH_BYTES = 64 * 1024
# A batch is sent at once with these, however long the reader was willing to wait.
URGENT = RUN_TERMINAL_TYPES | {"node.suspended"}
Piece: TypeAlias = list[StoredEvent] | Notice


class Collected(NamedTuple):
    """The events of one batch, a notice that goes behind it, and whether the stream ends there."""

    events: list[StoredEvent]
    notice: bytes = b""
    is_over: bool = False


async def get_events(exchange: Exchange) -> Answer | Stream:
    """Stream a run's events, or answer with the log so far when JSON is asked for."""
    modes = parse_modes(exchange.query.get("streamMode"))
    buffer_ms = exchange.whole_number("bufferMs", 0, most=LONGEST_BUFFER_MS)
    last = exchange.header(b"last-event-id")
    start = 0 if last is None else whole_number("Last-Event-ID", last) + 1
    name = run_id(exchange)
    await exchange.host.readers.row(exchange.tenant, name)
    if _wants_json(exchange.header(b"accept")):
        return await _log_so_far(exchange, name, start)
    exchange.host.bus.admit(name)
    batches = exchange.host.readers.follow(
        exchange.tenant, name, start, exchange.host.settings.heartbeat_seconds
    )
    framer = Framer(exchange.host.readers, exchange.tenant, name, modes)
    if buffer_ms:
        return Stream(_buffered(framer, batches, buffer_ms))
    return Stream(_unbuffered(framer, batches, is_resumed=last is not None))


def _wants_json(accept: str | None) -> bool:
    if accept is None:
        return False
    accepted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return "application/json" in accepted and "text/event-stream" not in accepted


async def _log_so_far(exchange: Exchange, name: str, start: int) -> Answer:
    """The whole log without a filter, unless a mode is asked for by name."""
    asked = exchange.query.get("streamMode")
    modes = None if asked is None else parse_modes(asked)

    def wanted(event: StoredEvent) -> bool:
        return modes is None or carries(modes, event.type)

    body = await exchange.host.readers.log_so_far(exchange.tenant, name, start, wanted)
    return Answer(200, body, headers={"cache-control": "no-store"})


async def _unbuffered(
    framer: Framer, batches: AsyncIterator[Piece], *, is_resumed: bool
) -> AsyncIterator[bytes]:
    if is_resumed:
        for chunk in await framer.present():
            yield chunk
    async for piece in batches:
        if isinstance(piece, Notice):
            if notice := framer.notice(piece):
                yield notice
        elif piece:
            for chunk in await framer.frames(piece):
                yield chunk
        else:
            yield KEEPALIVE


async def _buffered(
    framer: Framer, batches: AsyncIterator[Piece], buffer_ms: int
) -> AsyncIterator[bytes]:
    """Collect events for a while and send them as one `batch` frame.

    The clock of a batch starts with its first event, so a reader never waits longer than it
    asked for. A notice is no part of a batch: it is sent at once, behind what was collected.
    """
    send, receive = anyio.create_memory_object_stream[Piece](1)

    async def pump() -> None:
        async with send:
            async for piece in batches:
                await send.send(piece)

    async with anyio.create_task_group() as tasks, receive:
        tasks.start_soon(pump)
        while True:
            collected = await _collect(framer, receive, buffer_ms)
            if collected.events:
                for chunk in framer.batch(collected.events):
                    yield chunk
            if collected.notice:
                yield collected.notice
            if collected.is_over:
                return
            if not collected.events and not collected.notice:
                yield KEEPALIVE


async def _collect(
    framer: Framer,
    receive: anyio.abc.ObjectReceiveStream[Piece],
    buffer_ms: int,
) -> Collected:
    """The events of the next batch."""
    waiting: list[StoredEvent] = []
    with anyio.CancelScope() as patience:
        while True:
            try:
                piece = await receive.receive()
            except anyio.EndOfStream:
                return Collected(waiting, is_over=True)
            if isinstance(piece, Notice):
                if notice := framer.notice(piece):
                    return Collected(waiting, notice)
                continue
            wanted = [event for event in piece if framer.carries(event)]
            if wanted and not waiting:
                patience.deadline = anyio.current_time() + buffer_ms / 1000
            waiting += wanted
            is_urgent = any(event.type in URGENT for event in wanted)
            if not piece or is_urgent or sum(len(e.body) for e in waiting) > BATCH_BYTES:
                return Collected(waiting)
    return Collected(waiting)


async def poll_events(exchange: Exchange) -> Answer | Later:
    """Answer with new events, as soon as there are any or the time is up."""
    name = run_id(exchange)
    asked = "lastSequence" if "lastSequence" in exchange.query else "since"
    last = exchange.whole_number(asked, -1, least=-1)
    seconds = exchange.whole_number("timeout", POLL_DEFAULT, least=0, most=POLL_MOST)
    readers, tenant = exchange.host.readers, exchange.tenant
    newest = (await readers.row(tenant, name)).last_sequence
    exchange.host.bus.admit(name)

    events = await readers.wait_for_events(tenant, name, last + 1, 0, newest)
    row = await readers.row(tenant, name)
    if not events and row.last_sequence > last:
        # They were written since the log was read.
        events = await readers.wait_for_events(tenant, name, last + 1, 0, row.last_sequence)
    if events or not seconds or row.status in TERMINAL:
        return _page(name, last, events, row)

    async def wait() -> Answer:
        events = await readers.wait_for_events(tenant, name, last + 1, seconds)
        return _page(name, last, events, await readers.row(tenant, name))

    return Later(wait)


def _page(name: str, last: int, events: list[StoredEvent], row: RunRow) -> Answer:
    newest = events[-1].sequence if events else min(last, row.last_sequence)
    is_terminal = row.status in TERMINAL
    page = EventPage(
        run_id=name,
        events=[msgspec.Raw(event.body) for event in events],
        last_event_seq=newest,
        run_status=row.status,  # type: ignore[arg-type]  # the store keeps what the fold gave
        is_terminal=is_terminal,
        is_complete=is_terminal and newest >= row.last_sequence,
    )
    return Answer(200, encode(page), headers={"cache-control": "no-store"})


OPERATIONS = (
    Operation(
        name="pollEvents",
        method="GET",
        path="/v1/runs/{run_id}/events/poll",
        handler=poll_events,
        summary="Wait for a run's next events",
        tag="events",
        scope="runs:read",
        answer=EventPage,
        errors=(400, *RUN_ERRORS, 429),
        parameters=(
            Parameter(
                name="lastSequence",
                description="The last sequence that the reader has; -1 for none.",
                schema={"type": "integer", "minimum": -1},
            ),
            Parameter(
                name="since",
                description="An older name of lastSequence.",
                schema={"type": "integer", "minimum": -1},
            ),
            Parameter(
                name="timeout",
                description="How many seconds to wait at most; 0 answers at once.",
                schema={
                    "type": "integer",
                    "minimum": 0,
                    "maximum": POLL_MOST,
                    "default": POLL_DEFAULT,
                },
            ),
        ),
    ),
    Operation(
        name="getEvents",
        method="GET",
        path="/v1/runs/{run_id}/events",
        handler=get_events,
        summary="Stream a run's events, or read the log so far as JSON",
        tag="events",
        scope="runs:read",
        content_type="text/event-stream",
        errors=(400, *RUN_ERRORS, 429),
        parameters=(
            Parameter(
                name="streamMode",
                description=f"One of {', '.join(MODES)}, or a comma list without values.",
                schema={"type": "string", "default": "updates"},
            ),
            Parameter(
                name="bufferMs",
                description="Collect events for so long and send them as one batch.",
                schema={"type": "integer", "minimum": 0, "maximum": LONGEST_BUFFER_MS},
            ),
            Parameter(
                name="Last-Event-ID",
                description="Go on after this sequence.",
                schema={"type": "integer", "minimum": 0},
                where="header",
            ),
        ),
    ),
)
