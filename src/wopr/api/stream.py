"""Follow a run's events over SSE: parse frames, and reconnect without losing or doubling any."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
import httpx

from wopr.api.errors import HostError, HostUnreachable
from wopr.api.requests import segment
from wopr.protocol.events import RUN_TERMINAL_TYPES

# A healthy stream is never silent for longer than its heartbeat of at most 30 s.
SILENCE_SECONDS: Final = 75.0
_SEQUENCE: Final = re.compile(r"^[0-9]{1,15}$")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Frame:
    """One SSE frame; `id` is None when the frame itself named none."""

    event: str
    data: bytes
    id: str | None = None

    @property
    def sequence(self) -> int | None:
        """The sequence in the log that the frame stands for, if it stands for one."""
        return int(self.id) if self.id is not None and _SEQUENCE.match(self.id) else None

    @property
    def is_terminal(self) -> bool:
        """Tell whether nothing follows this frame."""
        return self.event in RUN_TERMINAL_TYPES


class LineSplitter:
    """Cut bytes into lines at the line ends of SSE, and at no other character.

    A JSON string may hold U+0085 or U+2028 as they are, which `str.splitlines` and the
    lines of httpx would break at.
    """

    def __init__(self) -> None:
        # The pieces of the line that is not complete yet. None of them is looked at again.
        self._pieces: list[bytes] = []
        self._has_carriage_return = False

    def feed(self, chunk: bytes) -> list[str]:
        """Take the next bytes and return every line that is now complete."""
        if self._has_carriage_return:
            chunk = b"\r" + chunk
        # A carriage return at the very end may be the first half of a CRLF.
        self._has_carriage_return = chunk.endswith(b"\r")
        first, *more = _LINE_END.split(chunk[:-1] if self._has_carriage_return else chunk)
        self._pieces.append(first)
        if not more:
            return []
        lines = [b"".join(self._pieces), *more[:-1]]
        self._pieces = [more[-1]]
        return [line.decode("utf-8", "replace") for line in lines]


class FrameParser:
    """Turn the lines of one connection into frames."""

    def __init__(self) -> None:
        self._event = ""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, line: str) -> Frame | None:
        """Take one line without its end; an empty line gives the frame it closes."""
        if line == "":
            return self._close()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._event = value
            case "id":
                self._id = value
            case "data":
                self._data.append(value)
            case _:
                pass  # a comment (empty name), `retry`, or a field of a later standard
        return None

    def _close(self) -> Frame | None:
        frame = (
            Frame(self._event or "message", "\n".join(self._data).encode(), self._id)
            if self._data
            else None
        )
        self._event, self._id, self._data = "", None, []
        return frame


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait before the next connection, and when to give up."""

    first: float = 0.25
    ceiling: float = 5.0
    attempts: int = 10

    def delay(self, failures: int) -> float:
        """Seconds to wait after that many connections in a row that brought nothing."""
        return min(self.ceiling, self.first * 2.0 ** max(0, failures - 1))


class Connect(Protocol):
    """Open the stream after a sequence; iterating gives its lines."""

    def __call__(self, after: int | None) -> AsyncGenerator[str, None]:
        """Yield lines until the server closes; raises `httpx.TransportError` on a loss."""
        ...


class EventStream:
    """A run's frames across as many connections as it takes, ending with the run.

    `is_over` asks the host whether the run has ended. `is_gapless` says that the mode carries
    every sequence, so that a jump means frames were lost on the way.
    """

    def __init__(
        self,
        connect: Connect,
        is_over: Callable[[], Awaitable[bool]],
        *,
        after: int | None = None,
        is_gapless: bool = False,
        patience: Patience | None = None,
    ) -> None:
        self._connect = connect
        self._is_over = is_over
        self._after = after
        self._is_gapless = is_gapless
        self._patience = patience or Patience()
        self._failures = 0

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield every frame once, in order; return after the terminal one."""
        was_over = False
        while True:
            try:
                async with aclosing(self._one_connection()) as frames:
                    async for frame in frames:
                        yield frame
                        if frame.is_terminal:
                            return
                # A stream may end without a terminal frame (mode `messages`, or a start past
                # the end). It is complete when it was opened after the run had ended.
                if was_over:
                    return
                was_over = await self._is_over()
                if was_over:
                    continue
                loss = "the server closed the stream"
            except Exception as error:
                if not self.is_passing(error):
                    raise
                loss = str(error) or type(error).__name__
            await self._wait(loss)

    def is_passing(self, error: Exception) -> bool:
        """Tell whether asking again may mend what kept a connection from going on."""
        if isinstance(error, HostError):
            return error.is_passing
        return isinstance(error, httpx.TransportError)

    def lost(self, message: str) -> Exception:
        """The failure that a stream ends with when it is given up."""
        return HostUnreachable(message, code="stream_lost")

    async def _one_connection(self) -> AsyncGenerator[Frame, None]:
        parser = FrameParser()
        async with aclosing(self._connect(self._after)) as lines:
            async for line in lines:
                if line.startswith(":"):
                    self._failures = 0
                frame = parser.feed(line)
                if frame is not None and not self._is_repeated(frame):
                    self._advance(frame)
                    yield frame

    def _advance(self, frame: Frame) -> None:
        if self._is_gap(frame):
            raise httpx.RemoteProtocolError(
                f"the stream jumped from sequence {self._after} to {frame.sequence}"
            )
        self._failures = 0
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
        if self._failures > self._patience.attempts:
            raise self.lost(f"lost the event stream: {reason}")
        await anyio.sleep(self._patience.delay(self._failures))


async def event_lines(
    http: httpx.AsyncClient,
    run_id: str,
    mode: str,
    after: int | None,
    refusal: Callable[[httpx.Response], Exception],
) -> AsyncGenerator[str, None]:
    """The lines of one connection to a run's event stream; a refused one raises `refusal`."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    splitter = LineSplitter()
    async with http.stream(
        "GET",
        f"/v1/runs/{segment(run_id)}/events",
        params={"streamMode": mode},
        headers=headers,
        timeout=httpx.Timeout(10.0, read=SILENCE_SECONDS),
    ) as response:
        if response.status_code != 200:
            await response.aread()
            raise refusal(response)
        async for chunk in response.aiter_bytes():
            for line in splitter.feed(chunk):
                yield line
