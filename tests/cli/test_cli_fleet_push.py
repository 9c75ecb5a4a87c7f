from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import pytest
from typer.testing import Result

from tests.cli.conftest import Wopr
from tests.cli.ingest_server import Script, ingest_server
from tests.support.kahn_lines import line
from wopr.api.errors import HostError
from wopr.cli.errors import ExitCode
from wopr.cli.fleet.upload import Chunk, SourceLine, Uploader, find_logs, split_into_chunks


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


def test_a_log_can_be_pushed_twice(server: Script, push: Wopr) -> None:
    log = write(Path("run.jsonl"), lines("r", 5))

    first, second = push(str(log)), push(str(log), "--json")

    assert first.exit_code == 0
    assert first.stdout == "5 lines accepted, 0 known already, 1 runs\n"
    assert json.loads(second.stdout) == {
        "accepted": 0,
        "duplicate": 5,
        "runs": 1,
        "errors": [],
        "expiring": {},
    }
    assert server.lines == lines("r", 5)


def test_a_whole_archive_is_pushed(server: Script, push: Wopr) -> None:
    for name in ("a", "b"):
        write(Path("archive/runs", name, "transitions.jsonl"), lines(name, 3))
    Path("archive/index.json").write_text("{}")

    done = push("archive")

    assert done.stdout == "6 lines accepted, 0 known already, 2 runs\n"
    assert len(server.sizes) == 1


def test_no_request_is_larger_than_the_advertised_limit(server: Script, push: Wopr) -> None:
    server.max_body_bytes = 1000
    log = write(Path("run.jsonl"), lines("r", 40))

    done = push(str(log))

    assert done.exit_code == 0
    assert max(server.sizes) <= 1000
    assert server.lines == lines("r", 40)


def test_a_server_with_a_lower_limit_than_advertised_gets_smaller_requests(
    server: Script, push: Wopr
) -> None:
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
def test_a_busy_server_gets_the_request_again(
    server: Script, push: Wopr, status: int, code: str
) -> None:
    server.fail(status, code, retry_after=0)
    log = write(Path("run.jsonl"), lines("r", 3))

    done = push(str(log))

    assert done.exit_code == 0
    assert "retry in" in done.stderr
    assert server.lines == lines("r", 3)


def test_a_broken_connection_is_opened_again(server: Script, push: Wopr) -> None:
    server.break_off()
    log = write(Path("run.jsonl"), lines("r", 3))

    done = push(str(log))

    assert done.exit_code == 0, done.stderr
    assert server.lines == lines("r", 3)


def test_a_push_to_an_unreachable_server_ends_at_the_patience_limit(
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


def test_a_log_with_a_different_past_is_named(server: Script, push: Wopr) -> None:
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


def test_an_incomplete_last_line_is_left_out(server: Script, push: Wopr) -> None:
    whole, torn = lines("r", 2)
    write(Path("a.jsonl"), [whole, torn[:40]], end=b"")

    done = push("a.jsonl")

    assert done.exit_code == 0
    assert "a.jsonl:2: incomplete line skipped" in done.stderr
    assert server.lines == [whole]


def test_a_whole_last_line_needs_no_newline(server: Script, push: Wopr) -> None:
    write(Path("a.jsonl"), lines("r", 2), end=b"")

    push("a.jsonl")

    assert server.lines == lines("r", 2)


@pytest.mark.parametrize(("name", "code"), [("nothing", 2), ("empty", 3)])
def test_a_place_without_logs_is_an_error(push: Wopr, name: str, code: int) -> None:
    Path("empty").mkdir()

    assert push(name).exit_code == code


def test_an_unreachable_server_is_reported_at_once(local: Wopr) -> None:
    write(Path("a.jsonl"), lines("r", 1))

    done = local("fleet", "push", "a.jsonl", WOPR_URL="http://127.0.0.1:9", WOPR_API_KEY="k")

    assert done.exit_code == ExitCode.UNAVAILABLE


def test_the_demo_is_pushed_with_one_command(server: Script, local: Wopr) -> None:
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


def test_logs_are_combined_in_order_and_never_split() -> None:
    given = [SourceLine(Path("a"), n, b"x" * n) for n in range(1, 40)]

    chunks = list(split_into_chunks(given, 100))

    assert [each for chunk in chunks for each in chunk.lines] == given
    assert all(len(chunk.body) <= 100 for chunk in chunks)


class Away:
    """A client whose server is unreachable, with this patience."""

    def __init__(self, retry_after: float | None) -> None:
        self._retry_after = retry_after

    async def ingest(self, body: bytes) -> None:
        raise HostError(
            "away", code="unavailable", is_transient=True, retry_after=self._retry_after
        )


def _pauses(
    retry_after: float | None, patience: float, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    client = Away(retry_after)
    sender = Uploader(client, patience=patience, notify=lambda _: None, random=Random(1))  # type: ignore[arg-type]  # all of the client that is used
    with pytest.raises(HostError):
        anyio.run(sender.send, Chunk((SourceLine(Path("a"), 1, b"{}"),)))
    return slept


def test_pauses_double_up_to_a_minute_with_random_jitter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept = _pauses(None, 300, monkeypatch)

    for pause, most in zip(slept, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=False):
        assert most / 2 <= pause <= most
    assert sum(slept) <= 300


def test_the_server_s_retry_after_overrides_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _pauses(7.0, 30, monkeypatch) == [7.0] * 4
