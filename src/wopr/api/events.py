"""Events of a run, and a client that follows them over SSE.

The client resumes a lost connection after the last sequence that it read, so it yields every event
exactly once.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio
import httpx
import msgspec
from httpx_sse import EventSource

from wopr.api.errors import HostError, HostUnreachable
from wopr.protocol.documents import UNSET, Document, Id, Json, Unset
from wopr.protocol.events import RUN_TERMINAL_TYPES
from wopr.protocol.events.payloads import PAYLOADS

# A healthy stream sends a heartbeat at least every 30 s.
SILENCE_SECONDS: Final = 75.0
_SEQUENCE: Final = re.compile(r"^[0-9]{1,15}$")

OnHeartbeat: TypeAlias = Callable[[], None]
# Opens the stream after a sequence and yields its frames until the host closes it.
Connect: TypeAlias = "Callable[[int | None, OnHeartbeat], AsyncGenerator[Frame, None]]"


class Event(Document, frozen=True, kw_only=True):
    """One event of a run's log, or a live notice, which is not stored in the log.

    Attributes:
        type: The event's type, such as `node.completed`.
        payload: The payload as JSON.
        sequence: The event's position in the log; unset for a notice.
        timestamp: The time of the event, as an ISO 8601 time.
        event_id: The event's id.
        run_id: The run's id.
        node_id: The id of the event's node; empty for events of the run.
        causation_id: The id of the event that caused this event; empty without a cause.

    Example:
        >>> from wopr import Run
        >>> async def show(run: Run[object]) -> None:
        ...     async for event in run.events():
        ...         print(event.sequence, event.type, event.node_id)
    """

    type: str
    payload: Json = None
    sequence: int | Unset = UNSET
    timestamp: str = ""
    event_id: str = ""
    run_id: Id | Unset = UNSET
    node_id: str = ""
    causation_id: str = ""

    @property
    def data(self) -> msgspec.Struct | None:
        """The payload as a typed struct; None for event types that this version does not know."""
        kind = PAYLOADS.get(self.type)
        if kind is None:
            return None
        try:
            return msgspec.convert(self.payload, kind)
        except msgspec.ValidationError:
            return None

    @property
    def is_terminal(self) -> bool:
        """Return whether the run ended with this event."""
        return self.type in RUN_TERMINAL_TYPES


@dataclass(frozen=True, slots=True)
class Frame:
    """One SSE frame. `id` is None if the frame has no id."""

    event: str
    data: bytes
    id: str | None = None

    @property
    def sequence(self) -> int | None:
        """The sequence of the event in the log; None for a notice."""
        return int(self.id) if self.id is not None and _SEQUENCE.match(self.id) else None

    @property
    def is_terminal(self) -> bool:
        """Return whether the run ended with this frame."""
        return self.event in RUN_TERMINAL_TYPES


def read_event(frame: Frame) -> Event:
    """Decode the event of a frame. Raises `HostUnreachable` for a frame that is not JSON."""
    try:
        return msgspec.json.decode(frame.data, type=Event)
    except (msgspec.DecodeError, UnicodeError):
        pass
    # A notice has no envelope.
    try:
        payload = msgspec.json.decode(frame.data)
    except (msgspec.DecodeError, UnicodeError) as fault:
        raise HostUnreachable(
            f"the host sent a {frame.event} frame that is not JSON", code="bad_answer"
        ) from fault
    return Event(type=frame.event, payload=payload)


async def read_frames(
    chunks: AsyncIterator[bytes], on_heartbeat: OnHeartbeat
) -> AsyncGenerator[Frame, None]:
    """Parse the body of one event stream."""
    source = EventSource(
        httpx.Response(
            200,
            headers={"Content-Type": "text/event-stream"},
            stream=_HeartbeatStream(chunks, on_heartbeat),
        )
    )
    last_id = ""
    async with aclosing(source.aiter_sse()) as parsed:
        async for sse in parsed:
            # For a frame without an id, httpx-sse repeats the last id, as the standard requires.
            own_id = None if sse.id == last_id else sse.id
            last_id = sse.id
            if sse.data:
                yield Frame(sse.event, sse.data.encode(), own_id)


class _HeartbeatStream(httpx.AsyncByteStream):
    """The bytes of a stream. Reports comments, which httpx-sse does not yield."""

    def __init__(self, chunks: AsyncIterator[bytes], on_heartbeat: OnHeartbeat) -> None:
        self._chunks = chunks
        self._on_heartbeat = on_heartbeat

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            if chunk.startswith(b":"):
                self._on_heartbeat()
            yield chunk


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays between connections without new frames, and the number of attempts."""

    first: float = 0.25
    maximum: float = 5.0
    attempts: int = 10

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after this number of consecutive failures."""
        return min(self.maximum, self.first * 2.0 ** max(0, failures - 1))


class EventStream:
    """The frames of a run until it ends, over several connections if necessary.

    `has_ended` reads from the host whether the run has ended. `is_gapless` means that the mode
    includes every sequence, so that a gap means lost frames.
    """

    def __init__(
        self,
        connect: Connect,
        has_ended: Callable[[], Awaitable[bool]],
        *,
        after: int | None = None,
        is_gapless: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        self._connect = connect
        self._has_ended = has_ended
        self._after = after
        self._is_gapless = is_gapless
        self._backoff = backoff or Backoff()
        self._failures = 0

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield every frame once, in order. Return after the terminal frame."""
        had_ended = False
        while True:
            try:
                async with aclosing(self._one_connection()) as frames:
                    async for frame in frames:
                        yield frame
                        if frame.is_terminal:
                            return
                # A stream may end without a terminal frame (mode `messages`, or a start after
                # the end). It is complete if it was opened after the run had ended.
                if had_ended:
                    return
                had_ended = await self._has_ended()
                if had_ended:
                    continue
                reason = "the server closed the stream"
            except (HostError, httpx.TransportError) as error:
                if isinstance(error, HostError) and not error.is_transient:
                    raise
                reason = str(error) or type(error).__name__
            await self._wait(reason)

    async def _one_connection(self) -> AsyncGenerator[Frame, None]:
        async with aclosing(self._connect(self._after, self._reset_failures)) as frames:
            async for frame in frames:
                if not self._is_repeated(frame):
                    self._advance(frame)
                    yield frame

    def _reset_failures(self) -> None:
        self._failures = 0

    def _advance(self, frame: Frame) -> None:
        if self._is_gap(frame):
            raise httpx.RemoteProtocolError(
                f"the stream jumped from sequence {self._after} to {frame.sequence}"
            )
        self._reset_failures()
        self._after = frame.sequence if frame.sequence is not None else self._after

    def _is_repeated(self, frame: Frame) -> bool:
        return (
            frame.sequence is not None and self._after is not None and frame.sequence <= self._after
        )

    def _is_gap(self, frame: Frame) -> bool:
        expected = -1 if self._after is None else self._after
        return self._is_gapless and frame.sequence is not None and frame.sequence != expected + 1

    async def _wait(self, reason: str) -> None:
        self._failures += 1
        if self._failures > self._backoff.attempts:
            raise HostUnreachable(f"lost the event stream: {reason}", code="stream_lost")
        await anyio.sleep(self._backoff.delay(self._failures))
