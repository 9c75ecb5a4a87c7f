from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import httpx
import pytest

from wopr.api import stream
from wopr.cli.errors import CliError
from wopr.cli.exit_codes import ExitCode
from wopr.cli.stream import EventStream, Frame, FrameParser, LineSplitter, Patience

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr

IMPATIENT = Patience(first=0.0, ceiling=0.0, attempts=3)


def parsed(*chunks: bytes) -> list[Frame]:
    splitter, parser = LineSplitter(), FrameParser()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [frame for line in lines if (frame := parser.feed(line)) is not None]


def sequences(output: str) -> list[int]:
    return [json.loads(line)["sequence"] for line in output.splitlines()]


class CountedSplits:
    """The pattern of line ends, counting the bytes that it looks at."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.scanned = 0

    def split(self, data: bytes) -> list[bytes]:
        self.scanned += len(data)
        return self._pattern.split(data)


@pytest.mark.parametrize("megabytes", [8, 30])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_byte_of_a_large_event_is_looked_at_once(
    megabytes: int, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountedSplits(stream._LINE_END)
    monkeypatch.setattr(stream, "_LINE_END", counted)
    data = b"x" * (megabytes * 1_000_000)
    sent = b"id: 1" + end + b"data: " + data + end + end + b":" + end
    chunks = [sent[at : at + 16_384] for at in range(0, len(sent), 16_384)]

    frames = parsed(*chunks)

    assert [frame.data == data for frame in frames] == [True]
    # A carriage return at the end of a chunk is looked at again with the next one.
    assert counted.scanned <= len(sent) + len(chunks)


def test_a_frame_has_its_id_event_and_all_its_data_lines() -> None:
    frames = parsed(b"id: 7\nevent: a.b\ndata: one\ndata:two\n\n")

    assert frames == [Frame("a.b", b"one\ntwo", "7")]


def test_comments_retries_and_frames_without_data_give_nothing() -> None:
    assert parsed(b":keepalive\n\nretry: 10\n\nevent: x\n\n") == []


def test_what_one_frame_said_is_not_said_of_the_next() -> None:
    frames = parsed(b"id: 7\nevent: a\ndata: 1\n\ndata: 2\n\n")

    assert frames[1] == Frame("message", b"2", None)


def test_all_line_ends_count_wherever_the_bytes_are_cut() -> None:
    text = b"event: a\r\ndata: 1\r\n\r\nevent: b\rdata: 2\r\revent: c\ndata: 3\n\n"
    whole = parsed(text)

    assert [frame.event for frame in whole] == ["a", "b", "c"]
    assert all(parsed(text[:cut], text[cut:]) == whole for cut in range(len(text)))


def test_line_separators_of_unicode_do_not_end_a_line() -> None:
    data = "one\u2028two\x85three\x0bfour"

    assert parsed(f"data: {data}\n\n".encode())[0].data == data.encode()


def test_an_unfinished_frame_is_not_given() -> None:
    assert parsed(b"event: a\ndata: 1\n") == []


@pytest.mark.parametrize("bad", [None, "", "x", "-1", "9" * 5000, "1.5"])
def test_an_id_that_is_no_sequence_is_none(bad: str | None) -> None:
    assert Frame("a", b"", bad).sequence is None


def test_lost_connections_lose_and_double_nothing(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    events = [host.event(n, "log.appended", message=f"m{n}") for n in range(6)]
    last = host.event(6, "run.completed")
    host.stream(
        "r1",
        [events[0], events[1], events[2][:30], host.CUT],
        [":keepalive\n\n", events[1], events[2], events[3], host.CUT],
        [events[4]],
        [host.CUT],
        [events[4], events[5], last],
    )

    result = wopr("runs", "tail", "r1", "--json")

    assert sequences(result.stdout) == list(range(7))
    assert host.last_event_ids() == [None, "1", "3", "4", "4"]


def test_a_jump_in_the_debug_stream_is_asked_for_again(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    events = [host.event(n, "log.appended") for n in range(3)]
    last = host.event(3, "run.completed")
    host.stream("r1", [events[0], events[2], last], [events[1], events[2], last])

    result = wopr("runs", "tail", "r1", "--json")

    assert sequences(result.stdout) == [0, 1, 2, 3]


def test_other_modes_may_leave_sequences_out(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    host.stream("r1", [host.event(0, "run.started"), host.event(5, "run.completed")])

    result = wopr("runs", "tail", "r1", "--mode", "updates", "--json")

    assert sequences(result.stdout) == [0, 5]
    assert len(host.last_event_ids()) == 1


def test_a_stream_past_the_end_of_an_ended_run_ends(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    host.stream("r1", [])

    result = wopr("runs", "tail", "r1", "--from", "100")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert host.last_event_ids() == ["99", "99"]


def test_a_server_that_is_busy_for_a_moment_is_asked_again(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    host.refuse("GET /v1/runs/r1/events", 503, "service_unavailable")
    host.answer("GET /v1/runs/r1/events", host.event(0, "run.completed").encode())

    result = wopr("runs", "tail", "r1", "--json")

    assert sequences(result.stdout) == [0]


def test_a_refused_stream_ends_at_once(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    host.refuse("GET /v1/runs/r1/events", 403, "forbidden", "not yours")

    result = wopr("runs", "tail", "r1")

    assert result.exit_code == 4
    assert len(host.last_event_ids()) == 1


@pytest.mark.anyio
async def test_a_server_that_stays_away_is_given_up() -> None:
    attempts: list[int | None] = []

    async def connect(after: int | None) -> AsyncGenerator[str, None]:
        attempts.append(after)
        raise httpx.ConnectError("refused")
        yield ""

    stream = EventStream(connect, not_over, patience=IMPATIENT)

    with pytest.raises(CliError, match="lost the event stream: refused") as lost:
        await read(stream)
    assert lost.value.exit_code is ExitCode.UNAVAILABLE
    assert len(attempts) == 4


@pytest.mark.anyio
async def test_a_heartbeat_restores_patience() -> None:
    scripts = [[":keepalive", ""]] * 20 + [["id: 0", "event: run.completed", "data: {}", ""]]

    async def connect(after: int | None) -> AsyncGenerator[str, None]:
        for line in scripts.pop(0):
            yield line

    frames = await read(EventStream(connect, not_over, patience=IMPATIENT))

    assert [frame.event for frame in frames] == ["run.completed"]


def test_patience_doubles_up_to_its_ceiling() -> None:
    patience = Patience(first=0.25, ceiling=5.0)

    assert [patience.delay(n) for n in (1, 2, 3, 6, 1000)] == [0.25, 0.5, 1.0, 5.0, 5.0]


async def not_over() -> bool:
    return False


async def read(stream: EventStream) -> Sequence[Frame]:
    return [frame async for frame in stream.frames()]


@pytest.mark.parametrize("data", ["{", "[1]", "\ufffd"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_frame_that_is_not_the_protocol_ends_with_6(
    host: FakeHost, wopr: Wopr, data: str, form: tuple[str, ...]
) -> None:
    host.run()
    host.stream("r1", [f"id: 0\nevent: run.started\ndata: {data}\n\n"])

    result = wopr("runs", "tail", "r1", *form)

    assert result.exit_code == 6
    assert "not a JSON object" in result.stderr
