from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.kahn_lines import AGENT_VARIANTS, CI_VARIANTS, TS
from wopr.kahn.emitters import kahn_agent_emit, kahn_emit
from wopr.kahn.emitters.kahn_agent_emit import AgentEmitter, AgentOutcome, AgentStatus, AuditResult
from wopr.kahn.emitters.kahn_emit import Emitter, Outcome, Status
from wopr.kahn.lines import read_line

EMITTERS = Path(kahn_emit.__file__).parent
SHARED = re.compile(r"^# --- shared .*: begin ---$.*^# --- shared .*: end ---$", re.M | re.S)
BUILT: dict[str, dict[str, object]] = {
    "agent_run_start": kahn_agent_emit.agent_run_start("r", "a", "task", model="m"),
    "agent_transition": kahn_agent_emit.agent_transition(
        "r", "a", 0, AgentStatus.THINKING, "tool_call", reason="why"
    ),
    "tool_invocation": kahn_agent_emit.tool_invocation("r", "a", 0, "t", 0.5, False, error="e"),
    "audit_checkpoint": kahn_agent_emit.audit_checkpoint(
        "r", None, "c", AuditResult.WARN, 0, evidence={"n": 1}
    ),
    "agent_run_end": kahn_agent_emit.agent_run_end(
        "r", "a", AgentOutcome.PARTIAL, 1, 1, 0, 0, 0, 2.5, convergence_score=0.5
    ),
    "run_start": kahn_emit.run_start("r", 2),
    "node_transition": kahn_emit.node_transition("r", "n", Status.READY, "running", attempt=1),
    "node_attempt": kahn_emit.node_attempt(
        "r", "n", 1, 0.5, True, [{"cmd": "make", "rc": 0, "duration_s": 0.1}]
    ),
    "run_end": kahn_emit.run_end("r", Outcome.STUCK, 1, 1, 1, 3.5, total_attempts=3, exit_code=1),
}


def test_both_files_share_the_same_source_byte_for_byte() -> None:
    ours, theirs = (
        SHARED.search((EMITTERS / name).read_text())
        for name in ("kahn_emit.py", "kahn_agent_emit.py")
    )

    assert ours is not None
    assert theirs is not None
    assert ours[0] == theirs[0]
    assert inspect.getsource(kahn_emit.now_ts) == inspect.getsource(kahn_agent_emit.now_ts)


@pytest.mark.parametrize(
    ("module", "variants", "others"),
    [
        (
            kahn_emit,
            CI_VARIANTS,
            ["Status", "Outcome", "Emitter", "now_ts"],
        ),
        (
            kahn_agent_emit,
            AGENT_VARIANTS,
            ["AgentStatus", "AgentOutcome", "AuditResult", "AgentEmitter", "now_ts"],
        ),
    ],
)
def test_a_file_offers_the_events_that_its_schema_declares_and_no_others(
    module: ModuleType, variants: list[str], others: list[str]
) -> None:
    own = {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }

    assert own == {*variants, *others}


@pytest.mark.parametrize("name", BUILT)
def test_a_builder_returns_a_valid_line_with_ordered_keys(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log"

    with AgentEmitter(path) as log:
        log.emit(BUILT[name])

    raw = path.read_bytes()
    assert raw.endswith(b"\n")
    assert read_line(raw[:-1]).fields == BUILT[name]
    assert list(BUILT[name])[:3] == ["ts", "run_id", "event"]


def test_arguments_without_a_value_are_omitted_except_the_one_legal_null() -> None:
    event = kahn_agent_emit.audit_checkpoint("r", None, "c", "pass", 0.5, own=None)

    assert event == event | {"agent_id": None, "event": "audit_checkpoint"}
    assert not event.keys() & {"evidence", "own"}


def test_a_given_timestamp_is_kept_and_the_current_one_has_milliseconds() -> None:
    assert kahn_emit.run_start("r", 1, ts=TS)["ts"] == TS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", kahn_emit.now_ts())


@pytest.mark.parametrize("field", ["event", "from"])
def test_an_extra_field_cannot_replace_a_declared_one(field: str) -> None:
    extra: dict[str, Any] = {field: "x"}

    with pytest.raises(TypeError, match=field):
        kahn_agent_emit.agent_transition("r", "a", 0, "thinking", "failed", **extra)


def test_a_value_outside_an_enum_is_refused_where_the_event_is_built() -> None:
    with pytest.raises(ValueError, match="blocked_on_clarification"):
        kahn_agent_emit.agent_transition("r", "a", 0, "thinking", "blocked_on_clarification")


def test_texts_are_cut_to_the_limit_of_a_line() -> None:
    long = "\u00fc" * 3000

    event = kahn_agent_emit.tool_invocation(
        "r", "a", 0, "t", 1, False, input_summary=long, output_summary=long, error="x" * 2048
    )

    assert event["output_summary"] == event["input_summary"] == long[:2047] + "\u2026"
    assert event["error"] == "x" * 2048


def test_of_a_long_tail_the_end_is_kept_and_marked() -> None:
    result = {"cmd": "make", "rc": 1, "duration_s": 1, "tail": "a" + "b" * 4096, "own": 1}

    event = kahn_emit.node_attempt("r", "n", 1, 1, False, [result])

    assert event["done_when_results"] == [{**result, "tail": "b" * 4096, "truncated": True}]
    assert len(str(result["tail"])) == 4097


def test_an_exit_code_of_zero_is_omitted() -> None:
    assert "exit_code" not in kahn_emit.run_end("r", "clean", 1, 0, 0, 1, exit_code=0)


def test_a_log_is_appended_to_and_its_directory_is_created(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "r" / "transitions.jsonl"

    for count in range(2):
        with Emitter(path) as log:
            log.emit({"n": count, "own": "\u00fc", "none": None})

    assert path.read_text() == '{"n":0,"own":"ü","none":null}\n{"n":1,"own":"ü","none":null}\n'


@pytest.mark.parametrize("event", [{"x": float("nan")}, {"x": float("inf")}, {"x": "\ud800"}])
def test_a_value_that_json_cannot_represent_is_refused_and_nothing_is_written(
    event: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "log"

    with Emitter(path) as log, pytest.raises(ValueError, match=r"JSON|surrogates"):
        log.emit(event)

    assert path.read_bytes() == b""


def test_every_event_is_one_write_and_the_end_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    path = tmp_path / "log"

    with AgentEmitter(path) as log:
        log.emit({"n": 1})
        after_one = path.read_bytes()
        log.emit({"n": 2})
    log.close()

    assert after_one == b'{"n":1}\n'
    assert len(synced) == 1


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    class Short:
        closed = False

        def __init__(self) -> None:
            self.written: list[bytes] = []

        def write(self, rest: memoryview) -> int:
            self.written.append(bytes(rest[:3]))
            return min(3, len(rest))

    log = Emitter(tmp_path / "log")
    log.close()
    short = Short()
    vars(log)["_file"] = short

    log.emit({"n": 1})

    assert b"".join(short.written) == b'{"n":1}\n'
    assert len(short.written) == 3


@pytest.mark.parametrize("is_locked", [False, True])
def test_threads_that_share_an_emitter_write_whole_lines(tmp_path: Path, is_locked: bool) -> None:
    path = tmp_path / "log"
    text = "x" * 9000

    def write(log: Emitter, n: int) -> None:
        for _ in range(20):
            log.emit({"n": n, "t": text})

    with Emitter(path, lock=is_locked) as log:
        threads = [threading.Thread(target=write, args=(log, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    lines = path.read_text().splitlines()
    assert len(lines) == 80
    assert {json.loads(line)["t"] for line in lines} == {text}


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from kahn_emit import Emitter
with Emitter(sys.argv[2], lock=True) as log:
    for n in range(50):
        log.emit({"who": sys.argv[3], "n": n, "t": "y" * 20000})
"""


def test_processes_that_lock_one_log_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"

    writers = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", WRITER, EMITTERS, path, str(n)])
        for n in range(3)
    ]
    codes = [writer.wait(timeout=60) for writer in writers]

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert codes == [0, 0, 0]
    for n in range(3):
        assert [each["n"] for each in lines if each["who"] == str(n)] == list(range(50))


BARE = """
import sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
module = __import__(sys.argv[2])
with getattr(module, sys.argv[3])(sys.argv[4]) as log:
    log.emit({"ts": module.now_ts()})
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - {sys.argv[2]}
print(sorted(loaded - set(sys.stdlib_module_names)))
"""


@pytest.mark.parametrize(
    ("module", "emitter"), [("kahn_emit", "Emitter"), ("kahn_agent_emit", "AgentEmitter")]
)
def test_a_copied_file_runs_with_the_standard_library_only(
    module: str, emitter: str, tmp_path: Path
) -> None:
    copy = tmp_path / "vendored"
    copy.mkdir()
    (copy / f"{module}.py").write_bytes((EMITTERS / f"{module}.py").read_bytes())
    command = [sys.executable, "-I", "-S", "-c", BARE]
    command += [str(copy), module, emitter, str(tmp_path / "log")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr == ""
    assert done.stdout == "[]\n"
    assert (tmp_path / "log").read_bytes().startswith(b'{"ts":"2')


def test_validation_refuses_an_invalid_event_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"

    with AgentEmitter(path, validate=True) as log:
        log.emit(BUILT["agent_transition"])
        with pytest.raises(Exception, match="step"):
            log.emit(BUILT["agent_transition"] | {"step": True})

    assert path.read_bytes().count(b"\n") == 1


def test_a_schema_of_the_producer_replaces_the_built_in_one(tmp_path: Path) -> None:
    with Emitter(tmp_path / "log", validate=True, schema={"required": ["own"]}) as log:
        log.emit({"own": 1})
        with pytest.raises(Exception, match="own"):
            log.emit(BUILT["run_start"])


def test_without_validation_the_validator_is_never_imported() -> None:
    for name in ("kahn_emit.py", "kahn_agent_emit.py"):
        source = (EMITTERS / name).read_text()
        inside = source.index("def _build_validator")

        assert [found.start() > inside for found in re.finditer('"jsonschema"', source)] == [True]
        assert "import jsonschema" not in source
