"""Routes of events: server-sent events, the log as JSON, and long polling."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, TypeAlias

import anyio
import msgspec

from wopr.http.operation import Operation, Parameter
from wopr.http.request import Request, whole_number
from wopr.http.response import DeferredResponse, Response, StreamResponse
from wopr.http.routes.runs import RUN_ERRORS, run_id_of
from wopr.http.sse import Framer
from wopr.protocol.documents import encode
from wopr.protocol.events import RUN_TERMINAL_TYPES
from wopr.protocol.runs import TERMINAL, EventPage
from wopr.protocol.streams import MODES, includes_event, parse_modes
from wopr.runs.event_bus import Notice
from wopr.store.port import RunRow, StoredEvent

MAX_BUFFER_MS = 5000
DEFAULT_POLL_SECONDS, MAX_POLL_SECONDS = 30, 60
KEEPALIVE = b":keepalive\n\n"
# A batch of this many bytes is sent before its time is over.
BATCH_BYTES = 64 * 1024
# Events of these types cause a batch to be sent immediately.
FLUSH_TYPES = RUN_TERMINAL_TYPES | {"node.suspended"}
EventsOrNotice: TypeAlias = list[StoredEvent] | Notice


class BufferedEvents(NamedTuple):
    """The events of one batch, a notice to send after it, and whether the stream ends."""

    events: list[StoredEvent]
    notice: bytes = b""
    is_over: bool = False


async def get_events(request: Request) -> Response | StreamResponse:
    """Stream a run's events, or return the log so far if the client accepts only JSON."""
    modes = parse_modes(request.query.get("streamMode"))
    buffer_ms = request.whole_number("bufferMs", 0, most=MAX_BUFFER_MS)
    last = request.header(b"last-event-id")
    start = 0 if last is None else whole_number("Last-Event-ID", last) + 1
    run_id = run_id_of(request)
    await request.host.run_reader.row(request.tenant, run_id)
    if _wants_json(request.header(b"accept")):
        return await _log_document(request, run_id, start)
    request.host.bus.admit(run_id)
    batches = request.host.run_reader.follow(
        request.tenant, run_id, start, request.host.settings.heartbeat_seconds
    )
    framer = Framer(request.host.run_reader, request.tenant, run_id, modes)
    if buffer_ms:
        return StreamResponse(_stream_buffered(framer, batches, buffer_ms))
    return StreamResponse(_stream_unbuffered(framer, batches, is_resumed=last is not None))


def _wants_json(accept: str | None) -> bool:
    if accept is None:
        return False
    accepted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return "application/json" in accepted and "text/event-stream" not in accepted


async def _log_document(request: Request, run_id: str, start: int) -> Response:
    """Return the log so far, filtered only if the query has a `streamMode`."""
    asked = request.query.get("streamMode")
    modes = None if asked is None else parse_modes(asked)

    def is_wanted(event: StoredEvent) -> bool:
        return modes is None or includes_event(modes, event.type)

    body = await request.host.run_reader.log_document(request.tenant, run_id, start, is_wanted)
    return Response(200, body, headers={"cache-control": "no-store"})


async def _stream_unbuffered(
    framer: Framer, batches: AsyncIterator[EventsOrNotice], *, is_resumed: bool
) -> AsyncIterator[bytes]:
    if is_resumed:
        for chunk in await framer.current_snapshot():
            yield chunk
    async for item in batches:
        if isinstance(item, Notice):
            if notice := framer.notice_frame(item):
                yield notice
        elif item:
            for chunk in await framer.frames(item):
                yield chunk
        else:
            yield KEEPALIVE


async def _stream_buffered(
    framer: Framer, batches: AsyncIterator[EventsOrNotice], buffer_ms: int
) -> AsyncIterator[bytes]:
    """Collect events for a while and send them as one `batch` frame.

    The time starts with the first event of a batch. A notice is not part of a batch: it ends the
    batch and is sent after it.
    """
    send, receive = anyio.create_memory_object_stream[EventsOrNotice](1)

    async def pump() -> None:
        async with send:
            async for item in batches:
                await send.send(item)

    async with anyio.create_task_group() as tasks, receive:
        tasks.start_soon(pump)
        while True:
            buffered = await _read_batch(framer, receive, buffer_ms)
            if buffered.events:
                for chunk in framer.batch_frame(buffered.events):
                    yield chunk
            if buffered.notice:
                yield buffered.notice
            if buffered.is_over:
                return
            if not buffered.events and not buffered.notice:
                yield KEEPALIVE


async def _read_batch(
    framer: Framer,
    receive: anyio.abc.ObjectReceiveStream[EventsOrNotice],
    buffer_ms: int,
) -> BufferedEvents:
    """Collect the events of the next batch."""
    waiting: list[StoredEvent] = []
    with anyio.CancelScope() as timeout:
        while True:
            try:
                item = await receive.receive()
            except anyio.EndOfStream:
                return BufferedEvents(waiting, is_over=True)
            if isinstance(item, Notice):
                if notice := framer.notice_frame(item):
                    return BufferedEvents(waiting, notice)
                continue
            wanted = [event for event in item if framer.carries(event)]
            if wanted and not waiting:
                timeout.deadline = anyio.current_time() + buffer_ms / 1000
            waiting += wanted
            must_flush = any(event.type in FLUSH_TYPES for event in wanted)
            if not item or must_flush or sum(len(e.body) for e in waiting) > BATCH_BYTES:
                return BufferedEvents(waiting)
    return BufferedEvents(waiting)


async def poll_events(request: Request) -> Response | DeferredResponse:
    """Return new events as soon as there are any, or an empty page after the timeout."""
    run_id = run_id_of(request)
    asked = "lastSequence" if "lastSequence" in request.query else "since"
    last = request.whole_number(asked, -1, least=-1)
    seconds = request.whole_number("timeout", DEFAULT_POLL_SECONDS, least=0, most=MAX_POLL_SECONDS)
    run_reader, tenant = request.host.run_reader, request.tenant
    newest = (await run_reader.row(tenant, run_id)).last_sequence
    request.host.bus.admit(run_id)

    events = await run_reader.wait_for_events(tenant, run_id, last + 1, 0, newest)
    row = await run_reader.row(tenant, run_id)
    if not events and row.last_sequence > last:
        # Events were written after the log was read.
        events = await run_reader.wait_for_events(tenant, run_id, last + 1, 0, row.last_sequence)
    if events or not seconds or row.status in TERMINAL:
        return _page(run_id, last, events, row)

    async def wait() -> Response:
        events = await run_reader.wait_for_events(tenant, run_id, last + 1, seconds)
        return _page(run_id, last, events, await run_reader.row(tenant, run_id))

    return DeferredResponse(wait)


def _page(run_id: str, last: int, events: list[StoredEvent], row: RunRow) -> Response:
    newest = events[-1].sequence if events else min(last, row.last_sequence)
    is_terminal = row.status in TERMINAL
    page = EventPage(
        run_id=run_id,
        events=[msgspec.Raw(event.body) for event in events],
        last_event_seq=newest,
        run_status=row.status,  # type: ignore[arg-type]  # the store keeps what the fold gave
        is_terminal=is_terminal,
        is_complete=is_terminal and newest >= row.last_sequence,
    )
    return Response(200, encode(page), headers={"cache-control": "no-store"})


OPERATIONS = (
    Operation(
        name="pollEvents",
        method="GET",
        path="/v1/runs/{run_id}/events/poll",
        handler=poll_events,
        summary="Wait for a run's next events",
        tag="events",
        scope="runs:read",
        response=EventPage,
        errors=(400, *RUN_ERRORS, 429),
        parameters=(
            Parameter(
                name="lastSequence",
                description="Last sequence that the reader has; -1 for none.",
                schema={"type": "integer", "minimum": -1},
            ),
            Parameter(
                name="since",
                description="Former name of lastSequence.",
                schema={"type": "integer", "minimum": -1},
            ),
            Parameter(
                name="timeout",
                description="Maximum number of seconds to wait; 0 responds immediately.",
                schema={
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_POLL_SECONDS,
                    "default": DEFAULT_POLL_SECONDS,
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
                description=f"One of {', '.join(MODES)}, or a comma-separated list without values.",
                schema={"type": "string", "default": "updates"},
            ),
            Parameter(
                name="bufferMs",
                description="Milliseconds to collect events before they are sent as one batch.",
                schema={"type": "integer", "minimum": 0, "maximum": MAX_BUFFER_MS},
            ),
            Parameter(
                name="Last-Event-ID",
                description="Continue after this sequence.",
                schema={"type": "integer", "minimum": 0},
                where="header",
            ),
        ),
    ),
)
