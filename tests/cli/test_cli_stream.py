from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr


def sequences(output: str) -> list[int]:
    return [json.loads(line)["sequence"] for line in output.splitlines()]


def test_lost_connections_lose_and_duplicate_no_event(host: FakeHost, wopr: Wopr) -> None:
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


def test_a_gap_in_the_debug_stream_is_requested_again(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    events = [host.event(n, "log.appended") for n in range(3)]
    last = host.event(3, "run.completed")
    host.stream("r1", [events[0], events[2], last], [events[1], events[2], last])

    result = wopr("runs", "tail", "r1", "--json")

    assert sequences(result.stdout) == [0, 1, 2, 3]


def test_other_modes_can_leave_sequences_out(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    host.stream("r1", [host.event(0, "run.started"), host.event(5, "run.completed")])

    result = wopr("runs", "tail", "r1", "--mode", "updates", "--json")

    assert sequences(result.stdout) == [0, 5]
    assert len(host.last_event_ids()) == 1


def test_a_stream_from_beyond_the_end_of_an_ended_run_ends(host: FakeHost, wopr: Wopr) -> None:
    host.run()
    host.stream("r1", [])

    result = wopr("runs", "tail", "r1", "--from", "100")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert host.last_event_ids() == ["99", "99"]


def test_a_busy_server_gets_the_request_again(host: FakeHost, wopr: Wopr) -> None:
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


@pytest.mark.parametrize("data", ["{", "[1]", "\ufffd"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_frame_outside_the_protocol_ends_with_6(
    host: FakeHost, wopr: Wopr, data: str, form: tuple[str, ...]
) -> None:
    host.run()
    host.stream("r1", [f"id: 0\nevent: run.started\ndata: {data}\n\n"])

    result = wopr("runs", "tail", "r1", *form)

    assert result.exit_code == 6
    assert "not a JSON object" in result.stderr
