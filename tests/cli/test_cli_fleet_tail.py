from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.ingest_server import Script, ingest_server
from tests.support.eventually import eventually
from tests.support.host import WOPR
from tests.support.kahn_lines import line
from wopr.cli.fleet import tail as fleet_tail
from wopr.cli.fleet.tail import Follower

DEADLINE_SECONDS = 60.0
LOG = Path("runs/r/transitions.jsonl")


def lines(run_id: str, count: int, first: int = 0) -> list[bytes]:
    return [line("tool_invocation", run_id=run_id, step=first + n) for n in range(count)]


def append(path: Path, *raw: bytes, end: bytes = b"\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        log.write(b"".join(each + b"\n" for each in raw[:-1]) + raw[-1] + end)


def polled(follower: Follower, times: int = 3) -> list[tuple[int, bytes]]:
    return [(each.number, each.raw) for _ in range(times) for each in follower.poll()]


@pytest.fixture
def follower() -> Iterator[Follower]:
    following = Follower(Path("log.jsonl"))
    yield following
    following.close()


def test_only_whole_lines_are_read_each_once(follower: Follower) -> None:
    append(follower.path, b"one", b"tw", end=b"")
    first = polled(follower)
    append(follower.path, b"o", b"", b"four")

    assert first == [(1, b"one")]
    assert polled(follower) == [(2, b"two"), (4, b"four")]
    assert polled(follower) == []


def test_a_missing_log_is_waited_for(follower: Follower) -> None:
    before = polled(follower)
    append(follower.path, b"one")

    assert before == []
    assert polled(follower) == [(1, b"one")]


def test_a_truncated_log_is_read_from_its_beginning(follower: Follower) -> None:
    append(follower.path, b"one", b"two")
    polled(follower)
    follower.path.write_bytes(b"new\n")

    assert polled(follower) == [(1, b"new")]


def test_a_log_that_was_truncated_and_has_grown_since_is_read_from_its_beginning(
    follower: Follower,
) -> None:
    append(follower.path, b"one", b"two")
    polled(follower)
    follower.path.write_bytes(b"other\nand\nlonger\nthan\nbefore\n")

    assert [raw for _, raw in polled(follower)] == [b"other", b"and", b"longer", b"than", b"before"]


def test_a_rotated_log_is_read_to_its_end_before_the_next(follower: Follower) -> None:
    append(follower.path, b"one")
    polled(follower)
    append(follower.path, b"two", b"three", end=b"")
    follower.path.rename("log.jsonl.1")
    append(follower.path, b"first of the next")

    assert polled(follower) == [(2, b"two"), (3, b"three"), (1, b"first of the next")]


def test_a_deleted_log_is_dropped_once_it_was_read(follower: Follower) -> None:
    append(follower.path, b"one")
    polled(follower)
    append(follower.path, b"two")
    follower.path.unlink()

    assert not follower.is_gone
    assert polled(follower) == [(2, b"two")]
    assert follower.is_gone


def test_an_idle_log_is_closed_and_still_followed(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_tail, "IDLE_SECONDS", -1.0)
    append(follower.path, b"one")
    polled(follower)
    open_files = len(os.listdir("/proc/self/fd"))
    polled(follower)
    append(follower.path, b"two")

    assert len(os.listdir("/proc/self/fd")) <= open_files
    assert polled(follower) == [(2, b"two")]


@pytest.fixture
def server() -> Iterator[Script]:
    with ingest_server() as script:
        yield script


Tail = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def tail(server: Script) -> Iterator[Tail]:
    started: list[subprocess.Popen[str]] = []

    def start(place: str = ".") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [WOPR, "fleet", "tail", place, "--interval", "0.05"],
            env=os.environ | {"WOPR_URL": server.url, "WOPR_API_KEY": "k"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stop(process: subprocess.Popen[str]) -> str:
    """Stop the command and return its output."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, err
    return out + err


def test_lines_are_pushed_as_they_are_written_and_new_logs_are_found(
    server: Script, tail: Tail
) -> None:
    append(LOG, *lines("r", 2))
    process = tail()
    eventually(lambda: len(server.lines) == 2)
    append(LOG, *lines("r", 2, first=2))
    append(Path("runs/s/transitions.jsonl"), *lines("s", 1))
    eventually(lambda: len(server.lines) == 5)

    said = stop(process)

    assert "5 lines accepted, 0 known already, 2 runs" in said


def test_an_unreachable_server_is_waited_for(server: Script, tail: Tail) -> None:
    server.break_off()
    server.fail(503, "unavailable", retry_after=0)
    server.fail(429, "rate_limited", retry_after=0)
    append(LOG, *lines("r", 3))
    process = tail()

    eventually(lambda: server.lines == lines("r", 3))

    assert stop(process).count("retry in") == 3


def test_a_bad_line_is_named_and_the_others_are_pushed(server: Script, tail: Tail) -> None:
    server.fail(400, "validation_error", errors=[{"line": 2, "message": "no event"}])
    append(LOG, *lines("r", 1), b'{"bad":1}', *lines("r", 1, first=1))
    process = tail()

    eventually(lambda: server.lines == lines("r", 2))

    assert f"{LOG}:2: no event" in stop(process)


def test_a_log_with_a_different_past_is_skipped_until_it_is_rewritten(
    server: Script, tail: Tail
) -> None:
    server.fail(409, "would_rewrite", errors=[{"line": 2, "message": "disagrees"}])
    append(LOG, *lines("r", 3))
    process = tail()
    eventually(lambda: not server.failures)
    append(LOG, *lines("r", 1, first=3))
    append(Path("runs/s/transitions.jsonl"), *lines("s", 1))
    eventually(lambda: server.lines == lines("s", 1))
    LOG.write_bytes(b"".join(each + b"\n" for each in lines("t", 2)))

    eventually(lambda: server.lines == [*lines("s", 1), *lines("t", 2)])

    assert f"{LOG}:2: disagrees" in stop(process)


def test_a_refused_key_ends_the_command(server: Script, tail: Tail) -> None:
    server.fail(401, "unauthenticated")
    append(LOG, *lines("r", 1))

    process = tail()

    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 4
