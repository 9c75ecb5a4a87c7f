from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import pytest
from tests.cli.conftest import Wopr
from tests.cli.ingest_server import Script, ingest_server
from tests.fleet.builders import line
from typer.testing import Result

from wopr.cli.errors import CliError
from wopr.cli.exit_codes import ExitCode
from wopr.cli.fleet_lines import Chunk, SourceLine, chunked, find_logs
from wopr.cli.fleet_sending import Sender


@pytest.fixture
def server() -> Iterator[Script]:
    with ingest_server() as script:
        yield script


@pytest.fixture
def push(server: Script, local: Wopr) -> Wopr:
    def invoke(*args: str) -> Result:
        return local("fleet", "push", *args, WOPR_URL=server.url, WOPR_API_KEY="k")

    return invoke


def lines(run_id: str, count: int) -> list[bytes]:
    return [line("tool_invocation", run_id=run_id, step=step) for step in range(count)]


def write(path: Path, raw: list[bytes], end: bytes = b"\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(raw) + end)
    return path


def test_a_log_is_pushed_and_pushed_again_without_harm(server: Script, push: Wopr) -> None:
    log = write(Path("run.jsonl"), lines("r", 5))

    first, second = push(str(log)), push(str(log), "--json")

    assert first.exit_code == 0
    assert first.stdout == "5 lines accepted, 0 held already, 1 runs\n"
    assert json.loads(second.stdout) == {
        "accepted": 0,
        "duplicate": 5,
        "runs": 1,
        "errors": [],
        "expiring": {},
    }
    assert server.lines == lines("r", 5)


def test_an_archive_is_pushed_whole(server: Script, push: Wopr) -> None:
    for name in ("a", "b"):
        write(Path("archive/runs", name, "transitions.jsonl"), lines(name, 3))
    Path("archive/index.json").write_text("{}")

    done = push("archive")

    assert done.stdout == "6 lines accepted, 0 held already, 2 runs\n"
    assert len(server.sizes) == 1


def test_no_request_is_larger_than_the_server_says(server: Script, push: Wopr) -> None:
    server.max_body_bytes = 1000
    log = write(Path("run.jsonl"), lines("r", 40))

    done = push(str(log))

    assert done.exit_code == 0
    assert max(server.sizes) <= 1000
    assert server.lines == lines("r", 40)


def test_a_server_that_takes_less_than_it_says_gets_less(server: Script, push: Wopr) -> None:
    server.fail(413, "payload_too_large")
    log = write(Path("run.jsonl"), lines("r", 4))

    done = push(str(log))

    assert done.exit_code == 0
    assert len(server.sizes) == 2
    assert server.lines == lines("r", 4)


def test_a_line_that_is_too_long_for_the_server_is_named(server: Script, push: Wopr) -> None:
    server.fail(413, "payload_too_large")
    log = write(Path("run.jsonl"), lines("r", 1))

    done = push(str(log))

    assert done.exit_code == ExitCode.FAILED
    assert "run.jsonl:1: not now" in done.stdout


@pytest.mark.parametrize(
    ("status", "code"), [(429, "rate_limited"), (503, "unavailable"), (500, "internal_error")]
)
def test_a_busy_server_is_asked_again(server: Script, push: Wopr, status: int, code: str) -> None:
    server.fail(status, code, retry_after=0)
    log = write(Path("run.jsonl"), lines("r", 3))

    done = push(str(log))

    assert done.exit_code == 0
    assert "trying again" in done.stderr
    assert server.lines == lines("r", 3)


def test_a_connection_that_breaks_is_made_again(server: Script, push: Wopr) -> None:
    server.break_off()
    log = write(Path("run.jsonl"), lines("r", 3))

    done = push(str(log))

    assert done.exit_code == 0, done.stderr
    assert server.lines == lines("r", 3)


def test_a_server_that_stays_away_ends_the_push_when_patience_does(
    server: Script, push: Wopr
) -> None:
    server.fail(503, "unavailable", retry_after=30)
    log = write(Path("run.jsonl"), lines("r", 3))

    done = push(str(log), "--patience", "1")

    assert done.exit_code == ExitCode.UNAVAILABLE
    assert server.lines == []


def test_bad_lines_are_named_with_their_file_and_all_other_files_are_pushed(
    server: Script, push: Wopr
) -> None:
    write(Path("logs/a.jsonl"), lines("a", 2))
    write(Path("logs/b.jsonl"), [b"", *lines("b", 1), b'{"no":1}', *lines("b", 2)])
    write(Path("logs/c.jsonl"), lines("c", 2))
    server.fail(400, "validation_error", errors=[{"line": 4, "message": "ts is missing"}])

    done = push("logs")

    assert done.exit_code == ExitCode.FAILED
    assert "logs/b.jsonl:3: ts is missing" in done.stdout
    assert "4 lines accepted" in done.stdout
    assert server.lines == [*lines("a", 2), *lines("c", 2)]


def test_a_log_with_another_past_is_named(server: Script, push: Wopr) -> None:
    write(Path("a.jsonl"), lines("a", 2))
    server.fail(409, "would_rewrite", errors=[{"line": 2, "message": "disagrees"}])

    done = push("a.jsonl", "--json")

    assert done.exit_code == ExitCode.FAILED
    assert json.loads(done.stdout)["errors"] == [
        {"file": "a.jsonl", "line": 2, "message": "disagrees"}
    ]


def test_a_refusal_of_the_whole_request_ends_the_push(server: Script, push: Wopr) -> None:
    server.fail(403, "forbidden")

    done = push(str(write(Path("a.jsonl"), lines("a", 2))))

    assert done.exit_code == ExitCode.DENIED


def test_a_last_line_that_is_still_being_written_is_left_out(server: Script, push: Wopr) -> None:
    whole, torn = lines("r", 2)
    write(Path("a.jsonl"), [whole, torn[:40]], end=b"")

    done = push("a.jsonl")

    assert done.exit_code == 0
    assert "a.jsonl:2: not a whole line yet" in done.stderr
    assert server.lines == [whole]


def test_a_whole_last_line_needs_no_newline(server: Script, push: Wopr) -> None:
    write(Path("a.jsonl"), lines("r", 2), end=b"")

    push("a.jsonl")

    assert server.lines == lines("r", 2)


@pytest.mark.parametrize(("name", "code"), [("nothing", 2), ("empty", 3)])
def test_a_place_without_logs_is_an_error(push: Wopr, name: str, code: int) -> None:
    Path("empty").mkdir()

    assert push(name).exit_code == code


def test_a_server_that_is_not_there_is_said_at_once(local: Wopr) -> None:
    write(Path("a.jsonl"), lines("r", 1))

    done = local("fleet", "push", "a.jsonl", WOPR_URL="http://127.0.0.1:9", WOPR_API_KEY="k")

    assert done.exit_code == ExitCode.UNAVAILABLE


def test_a_demo_is_pushed_with_one_command(server: Script, local: Wopr) -> None:
    done = local(
        "fleet", "demo", "demo", "--days", "1", "--push", WOPR_URL=server.url, WOPR_API_KEY="k"
    )

    assert done.exit_code == 0
    assert len(server.lines) > 100
    assert f"{len(server.lines)} lines accepted" in done.stdout


def test_logs_are_found_in_an_archive_or_in_any_folder() -> None:
    archived = write(Path("archive/runs/a/transitions.jsonl"), [])
    write(Path("archive/other.jsonl"), [])
    loose = write(Path("logs/x/y.ndjson"), [])

    assert find_logs(Path("archive")) == [archived]
    assert find_logs(Path("logs")) == [loose]
    assert find_logs(loose) == [loose]


def test_lines_are_put_together_in_order_and_never_cut() -> None:
    given = [SourceLine(Path("a"), n, b"x" * n) for n in range(1, 40)]

    chunks = list(chunked(given, 100))

    assert [each for chunk in chunks for each in chunk.lines] == given
    assert all(len(chunk.body) <= 100 for chunk in chunks)


class Away:
    """A client whose server is away, and asks for this much patience."""

    def __init__(self, retry_after: float | None) -> None:
        self._retry_after = retry_after

    async def ingest(self, body: bytes) -> None:
        raise CliError(
            "away", ExitCode.UNAVAILABLE, is_transient=True, retry_after=self._retry_after
        )


def _pauses(
    retry_after: float | None, patience: float, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    client = Away(retry_after)
    sender = Sender(client, patience=patience, say=lambda _: None, chance=Random(1))  # type: ignore[arg-type]  # all of the client that is used
    with pytest.raises(CliError):
        anyio.run(sender.send, Chunk((SourceLine(Path("a"), 1, b"{}"),)))
    return slept


def test_pauses_double_up_to_a_minute_with_some_chance_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept = _pauses(None, 300, monkeypatch)

    for pause, most in zip(slept, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=False):
        assert most / 2 <= pause <= most
    assert sum(slept) <= 300


def test_the_server_s_own_wish_wins_over_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _pauses(7.0, 30, monkeypatch) == [7.0] * 4
