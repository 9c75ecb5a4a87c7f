from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import httpx
import pytest

from wopr import HostUnreachable
from wopr.api.events import Backoff, EventStream, Frame, OnHeartbeat, read_frames

pytestmark = pytest.mark.anyio

IMPATIENT = Backoff(first=0.0, maximum=0.0, attempts=3)


async def chunked(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def parsed(*chunks: bytes) -> list[Frame]:
    return [frame async for frame in read_frames(chunked(*chunks), lambda: None)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_a_large_event_in_many_chunks_is_parsed_in_linear_time(end: bytes) -> None:
    data = b"x" * 30_000_000
    sent = b"id: 1" + end + b"data: " + data + end + end + b":" + end
    chunks = [sent[at : at + 16_384] for at in range(0, len(sent), 16_384)]

    began = time.process_time()
    frames = await parsed(*chunks)

    assert [frame.data == data for frame in frames] == [True]
    # A parser that joins all pieces again for every chunk would copy 27 GB.
    assert time.process_time() - began < 5


async def test_a_frame_has_its_id_event_and_all_data_lines() -> None:
    frames = await parsed(b"id: 7\nevent: a.b\ndata: one\ndata:two\n\n")

    assert frames == [Frame("a.b", b"one\ntwo", "7")]


async def test_comments_retries_and_frames_without_data_are_skipped() -> None:
    assert await parsed(b":keepalive\n\nretry: 10\n\nevent: x\n\n") == []


async def test_comments_after_a_frame_are_skipped() -> None:
    assert len(await parsed(b"id: 1\ndata: 1\n\n:keepalive\n\n", b":keepalive\n\n")) == 1


async def test_a_frame_does_not_inherit_the_id_and_event_of_the_frame_before_it() -> None:
    frames = await parsed(b"id: 7\nevent: a\ndata: 1\n\ndata: 2\n\n")

    assert frames[1] == Frame("message", b"2", None)


async def test_all_line_endings_are_parsed_however_the_bytes_are_split() -> None:
    text = b"event: a\r\ndata: 1\r\n\r\nevent: b\rdata: 2\r\revent: c\ndata: 3\n\n"
    whole = await parsed(text)

    assert [frame.event for frame in whole] == ["a", "b", "c"]
    for cut in range(1, len(text)):
        assert await parsed(text[:cut], text[cut:]) == whole


async def test_unicode_line_separators_do_not_end_a_line() -> None:
    data = "one\u2028two\x85three\x0bfour"

    assert (await parsed(f"data: {data}\n\n".encode()))[0].data == data.encode()


async def test_an_unfinished_frame_is_not_returned() -> None:
    assert await parsed(b"event: a\ndata: 1\n") == []


@pytest.mark.parametrize("bad", [None, "", "x", "-1", "9" * 5000, "1.5"])
def test_an_id_that_is_not_a_sequence_gives_no_sequence(bad: str | None) -> None:
    assert Frame("a", b"", bad).sequence is None


async def test_a_notice_between_two_events_is_neither_dropped_nor_counted() -> None:
    body = b"id: 0\ndata: 0\n\nevent: run.annotated\ndata: {}\n\nid: 1\nevent: run.completed\ndata: 1\n\n"

    def connect(after: int | None, on_heartbeat: OnHeartbeat) -> AsyncGenerator[Frame, None]:
        return read_frames(chunked(body), on_heartbeat)

    frames = await read(EventStream(connect, not_ended, is_gapless=True, backoff=IMPATIENT))

    assert [frame.sequence for frame in frames] == [0, None, 1]


async def test_reconnecting_stops_when_the_host_stays_unreachable() -> None:
    attempts: list[int | None] = []

    async def connect(after: int | None, on_heartbeat: OnHeartbeat) -> AsyncGenerator[Frame, None]:
        attempts.append(after)
        raise httpx.ConnectError("refused")
        yield Frame("", b"")

    stream = EventStream(connect, not_ended, backoff=IMPATIENT)

    with pytest.raises(HostUnreachable, match="lost the event stream: refused") as lost:
        await read(stream)
    assert lost.value.code == "stream_lost"
    assert len(attempts) == 4


async def test_a_heartbeat_resets_the_failure_count() -> None:
    scripts = [b":keepalive\n\n"] * 20 + [b"id: 0\nevent: run.completed\ndata: {}\n\n"]

    def connect(after: int | None, on_heartbeat: OnHeartbeat) -> AsyncGenerator[Frame, None]:
        return read_frames(chunked(scripts.pop(0)), on_heartbeat)

    frames = await read(EventStream(connect, not_ended, backoff=IMPATIENT))

    assert [frame.event for frame in frames] == ["run.completed"]


def test_the_delay_doubles_up_to_its_maximum() -> None:
    backoff = Backoff(first=0.25, maximum=5.0)

    assert [backoff.delay(n) for n in (1, 2, 3, 6, 1000)] == [0.25, 0.5, 1.0, 5.0, 5.0]


async def not_ended() -> bool:
    return False


async def read(stream: EventStream) -> Sequence[Frame]:
    return [frame async for frame in stream.frames()]
