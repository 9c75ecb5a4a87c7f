"""The producer's commands and the fleet's tables, with a served host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agent_definitions import agent_name, mock, scripted
from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.eventually import eventually
from tests.support.forked import run
from tests.support.host import ACME, GLOBEX, WOPR, ServedHost, kept_port
from tests.support.kahn import ASKS, KahnRun, push_run, stored_lines, transitions
from tests.support.kahn_lines import line
from wopr.protocol.documents import JsonObject

STOP_SECONDS = 60


class Shell:
    """Run `wopr fleet` commands with one host."""

    def __init__(self, host: ServedHost, place: Path, key: str = ACME) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("WOPR_")}
        self.variables = kept | {"WOPR_URL": host.url, "WOPR_API_KEY": key}
        self.place = place

    def __call__(self, *arguments: str) -> str:
        done = run(("fleet", *arguments), self.variables, self.place)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def fleet(host: ServedHost, tmp_path: Path) -> Shell:
    return Shell(host, tmp_path)


def test_an_archive_is_exported_as_it_was_pushed(
    new_host: Callable[..., ServedHost], tmp_path: Path
) -> None:
    fleet = Shell(new_host(), tmp_path)
    fleet("demo", "there", "--days", "2", "--push")

    fleet("export", "--archive", "back")
    fleet("export", "--archive", "back")

    files = [path.relative_to(tmp_path / "there") for path in (tmp_path / "there").rglob("*.json*")]
    assert len(files) > 20
    for name in files:
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert "0 lines accepted" in fleet("push", "back")


GRAPH = {"version": 1, "nodes": [{"id": "build", "cost": 1.50}]}


def ci_log(place: Path, run_id: str, graph: str | None = None) -> list[bytes]:
    """Return a log of the CI family in an archive, with a graph beside it."""
    same: JsonObject = {"run_id": run_id, "ts": KahnRun().ts}
    lines = [line("run_start", **same), line("run_end", **same)]
    folder = place / "runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "transitions.jsonl").write_bytes(b"".join(each + b"\n" for each in lines))
    if graph is not None:
        (folder / "graph.json").write_text(graph)
    return lines


def test_the_graph_of_a_run_is_pushed_and_exported(fleet: Shell, acme: Wire) -> None:
    run_id = fresh("graph")
    lines = ci_log(fleet.place / "a", run_id, json.dumps(GRAPH, indent=2))

    first, second = fleet("push", "a"), fleet("push", "a")
    fleet("export", run_id, "--archive", "back")

    assert "2 lines accepted" in first
    assert "0 lines accepted, 2 known already" in second
    began, ended = stored_lines(acme, run_id)
    assert json.loads(began) == json.loads(lines[0]) | {"graph": GRAPH}
    assert began.startswith(lines[0][:-1])
    assert ended == lines[1]
    assert json.loads((fleet.place / "back/runs" / run_id / "graph.json").read_text()) == GRAPH
    assert "2 known already" in fleet("push", "back")


def test_a_graph_that_arrives_too_late_is_ignored(fleet: Shell, acme: Wire) -> None:
    run_id = fresh("graph")
    lines = ci_log(fleet.place / "a", run_id)
    fleet("push", "a")
    (fleet.place / "a/runs" / run_id / "graph.json").write_text(json.dumps(GRAPH))

    again = fleet("push", "a")

    assert "0 lines accepted, 2 known already" in again
    assert stored_lines(acme, run_id) == lines


@pytest.mark.parametrize("graph", ["[]", "{", "\x00"])
def test_an_invalid_graph_does_not_prevent_the_push_of_a_log(
    fleet: Shell, acme: Wire, graph: str
) -> None:
    run_id = fresh("graph")
    lines = ci_log(fleet.place / "a", run_id, graph)

    fleet("push", "a")

    assert stored_lines(acme, run_id) == lines


def test_a_run_is_exported_to_a_file_or_to_the_terminal(fleet: Shell, acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, *story.whole())

    shown = fleet("export", run_id)
    fleet("export", story.run_id, "--out", "run.jsonl")

    assert shown.encode().split(b"\n")[:-1] == story.whole()
    assert (fleet.place / "run.jsonl").read_text() == shown


def test_an_archive_is_never_overwritten(fleet: Shell, acme: Wire, globex: Wire) -> None:
    story = KahnRun()
    push_run(acme, *story.whole())
    push_run(globex, story.start(task="another"))
    fleet("export", story.run_id, "--archive", "a")

    other = subprocess.run(
        [WOPR, "fleet", "export", story.run_id, "--archive", "a"],
        cwd=fleet.place,
        env=fleet.variables | {"WOPR_API_KEY": GLOBEX},
        capture_output=True,
        check=False,
    )

    assert other.returncode == 5
    log = fleet.place / "a/runs" / story.run_id / "transitions.jsonl"
    assert log.read_bytes().split(b"\n")[:-1] == story.whole()


def test_the_table_of_agents_shows_waiting_ones_and_where_to_answer(
    new_host: Callable[..., ServedHost], tmp_path: Path
) -> None:
    host = new_host("--conformance")
    fleet = Shell(host, tmp_path)
    doubts: JsonObject = {"mockDecision": {"decision": {"next": "x"}, "confidence": 0.5}}
    story = KahnRun("outsider")
    with Wire(host.url, ACME) as wire:
        run_id = wire.create(
            wire.register(scripted([mock(agent={"agentId": agent_name()}, **doubts)]))
        )
        push_run(wire, story.start(), story.move(0, *ASKS))
        wire.events_until(run_id, "interrupt.requested")
        eventually(lambda: stored_lines(wire, run_id) == transitions(wire, run_id) != [])
        [item] = wire.document("/v1/interrupts")["items"]

    rows = [row for row in fleet("agents").splitlines() if " s (" in row]

    assert len(rows) == 2
    [outside] = [row for row in rows if row.startswith("outsider")]
    [inside] = [row for row in rows if row not in (outside,)]
    assert "(other system)" in outside
    assert f"(answer {item['interruptId']})" in inside


def test_tables_show_runs_and_audits(fleet: Shell, acme: Wire) -> None:
    story = KahnRun()
    run_id = push_run(acme, *story.whole())

    assert run_id in fleet("runs", "--limit", "200")
    assert story.run_id in fleet("runs", "--agent", "coder", "--limit", "200")
    assert "policy:licence" in fleet("audits")
    assert json.loads(fleet("agents", "--severity", "--json"))["window"] == "7d"
    assert json.loads(fleet("audits", "--window", "24h", "--json"))["window"] == "24h"
    assert json.loads(fleet("runs", "--json"))["runs"]


@pytest.fixture
def tail(new_host: Callable[..., ServedHost], tmp_path: Path) -> Iterator[tuple[ServedHost, Path]]:
    """Start a host on a fixed port, and follow an archive."""
    host = new_host("--port", str(kept_port()))
    archive = tmp_path / "archive"
    archive.mkdir()
    process = subprocess.Popen(
        [WOPR, "fleet", "tail", str(archive), "--interval", "0.05"],
        env=Shell(host, tmp_path).variables,
        stdout=sys.stderr,
    )
    yield host, archive
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=STOP_SECONDS) == 0


def test_a_tail_continues_after_a_restart_of_the_host(tail: tuple[ServedHost, Path]) -> None:
    host, archive = tail
    story = KahnRun()
    log = archive / "runs" / story.run_id / "transitions.jsonl"
    log.parent.mkdir(parents=True)
    log.write_bytes(story.start() + b"\n")
    with Wire(host.url, ACME) as wire:
        eventually(lambda: stored_lines(wire, story.run_id) == [story.start()])
    host.stop()
    with log.open("ab") as file:
        file.write(b"\n".join(story.whole()[1:]) + b"\n")
    host.start()

    with Wire(host.url, ACME) as wire:
        eventually(lambda: stored_lines(wire, story.run_id) == story.whole())
        assert transitions(wire, story.run_id) == story.whole()
