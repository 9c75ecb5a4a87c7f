from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.kahn_lines import line, move
from wopr.cli.main import app
from wopr.kahn.emitters import kahn_agent_emit, kahn_emit
from wopr.kahn.events import export_schemas

SOUND = line("agent_run_start") + b"\n"
WARNED = SOUND + line("agent_run_start") + b"\n"
BROKEN = b'{"ts":"\x1b[31m"}\n'


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def wopr_fleet(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["fleet", *arguments], input=stdin)


@pytest.mark.parametrize(
    ("log", "options", "code"),
    [
        (SOUND, [], 0),
        (b"", [], 0),
        (WARNED, [], 0),
        (WARNED, ["--strict"], 1),
        (SOUND + move(0, "thinking", "response"), ["--strict"], 0),
        (BROKEN, [], 1),
    ],
)
def test_the_exit_code_of_a_check_says_whether_there_are_errors(
    log: bytes, options: list[str], code: int
) -> None:
    Path("log").write_bytes(log)

    assert wopr_fleet("check", "log", *options).exit_code == code


def test_a_check_names_file_line_level_and_code() -> None:
    Path("log").write_bytes(WARNED)

    result = wopr_fleet("check", "log")

    assert result.stdout == "log:2: warn second_start: coder has already started\n"
    assert result.stderr == "0 errors, 1 warnings, 0 notes\n"


def test_a_check_for_programs_prints_one_document_per_finding() -> None:
    Path("log").write_bytes(SOUND)

    result = wopr_fleet("check", "log", "-", "--json", "--strict", stdin=WARNED)

    assert [json.loads(each) for each in result.stdout.splitlines()] == [
        {
            "file": "-",
            "line": 2,
            "code": "second_start",
            "level": "error",
            "message": "coder has already started",
        }
    ]
    assert result.exit_code == 1


def test_files_are_checked_separately_and_control_characters_are_escaped() -> None:
    for name in ("a", "b"):
        Path(name).write_bytes(SOUND + BROKEN)

    result = wopr_fleet("check", "a", "b")

    assert [each.split(":")[:2] for each in result.stdout.splitlines()] == [["a", "2"], ["b", "2"]]
    assert "\x1b" not in result.stdout


def test_a_missing_file_is_wrong_usage() -> None:
    result = wopr_fleet("check", "gone")

    assert result.exit_code == 2
    assert "cannot read gone" in result.stderr


@pytest.mark.parametrize(("family", "module"), [("agent", kahn_agent_emit), ("ci", kahn_emit)])
def test_an_emitter_is_printed_unchanged(family: str, module: object) -> None:
    source = Path(str(vars(module)["__file__"])).read_bytes()

    assert wopr_fleet("emitter", family).stdout_bytes == source


@pytest.mark.parametrize(
    ("family", "name"), [("agent", "kahn-agent-event"), ("ci", "kahn-ci-event")]
)
def test_a_schema_is_printed(family: str, name: str) -> None:
    assert json.loads(wopr_fleet("schema", family).stdout) == export_schemas()[name]


def test_an_unknown_family_is_wrong_usage() -> None:
    assert wopr_fleet("emitter", "both").exit_code == 2


def test_a_demo_archive_has_no_findings() -> None:
    arguments = ("archive", "--days", "2", "--seed", "7", "--until", "2026-03-04T12:00:00")

    written = wopr_fleet("demo", *arguments, "--json")
    logs = sorted(str(path) for path in Path("archive/runs").glob("*/transitions.jsonl"))
    checked = wopr_fleet("check", "--strict", *logs)

    assert json.loads(written.stdout)["runs"] == len(logs) == 25
    assert checked.exit_code == 0
    assert Path("archive/index.json").exists()


def test_a_demo_never_writes_into_an_existing_log() -> None:
    first = wopr_fleet("demo", "--days", "1")
    second = wopr_fleet("demo", "--days", "1")

    assert first.stdout.endswith("lines in .kahn/archive\n")
    assert second.exit_code == 5
    assert "never overwritten" in second.stderr
