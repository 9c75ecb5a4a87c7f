"""A pushed run as the store gets it: its batch, its row, and the snapshot that comes with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.fleet.builders import AGENT, line, log_rules, move
from wopr.fleet.bridge import project
from wopr.fleet.observed_ids import is_observed_run, observed_run_id, require_own
from wopr.protocol.errors import Conflict
from wopr.protocol.events import RunEvent
from wopr.runtime.observed_run import ObservedRun
from wopr.store.port import Batch
from wopr.store.sql.batches import check_batch

RULES = log_rules()
NOW = 1_800_000_000_000
START = line("agent_run_start")
END = line("agent_run_end", outcome="converged", convergence_score=1)
ASKS = move(1, "thinking", "blocked-on-clarification")
GOES_ON = move(1, "blocked-on-clarification", "thinking")
LATE = line("audit_checkpoint", agent_id=None, checkpoint_id="policy:licence", result="warn")


def a_run(run_id: str = "r-1", tenant: str = "acme") -> ObservedRun:
    return ObservedRun(tenant, run_id, RULES)


def push(run: ObservedRun, *lines: bytes) -> Batch:
    ids = count(run.next_sequence)
    batch = run.take([b"\n".join([*lines, b""])], now=NOW, new_id=lambda: f"e{next(ids)}")
    check_batch(batch)
    return batch


def events(batches: Iterable[Batch]) -> list[RunEvent]:
    bodies = [event.body for batch in batches for event in batch.events]
    return [msgspec.json.decode(body, type=RunEvent) for body in bodies]


def shown(batch: Batch) -> dict[str, Any]:
    assert batch.run.snapshot is not None
    snapshot: dict[str, Any] = json.loads(batch.run.snapshot)
    return snapshot


def test_the_id_is_the_same_for_the_same_tenant_and_run_and_no_other() -> None:
    ids = {observed_run_id(tenant, run) for tenant in ("a", "b", "a\nb") for run in ("x", "y")}

    assert len(ids) == 6
    assert observed_run_id("a", "x") in ids
    assert all(is_observed_run(each) and len(each) <= 128 for each in ids)
    assert len(observed_run_id("a", "x" * 64)) <= 128


def test_an_observed_run_is_nobody_s_here_to_move() -> None:
    require_own("0198c1f2-7b6a-7c3e-9d55-0f2a8c1b4e70")

    with pytest.raises(Conflict, match="observed") as refused:
        require_own(observed_run_id("acme", "r-1"))

    assert refused.value.code == "run_state_conflict"


def test_a_run_pushed_in_pieces_is_the_run_pushed_at_once() -> None:
    lines = [START, move(0, "thinking", "tool_call"), line("tool_invocation"), ASKS, GOES_ON, END]
    pieces = a_run()

    batches = [push(pieces, each) for each in lines]

    whole = push(a_run(), *lines)
    assert [e.type for e in events(batches)] == [e.type for e in events([whole])]
    assert batches[-1].run == whole.run


def test_a_run_recalled_from_its_log_goes_on_as_if_it_had_been_followed() -> None:
    lines = [START, ASKS, GOES_ON, ASKS, GOES_ON, line("tool_invocation"), END, LATE]
    followed, first = a_run(), [line("tool_invocation")]
    before = [push(followed, *lines[:3]), push(followed, *first)]
    recalled = a_run()

    recalled.recall(events(before))
    recalled.recall_lines(b"\n".join([*lines[:3], *first, *lines[3:]]))

    assert (recalled.next_sequence, recalled.known_lines) == (followed.next_sequence, 4)
    again, since = push(recalled, *lines[3:]), push(followed, *lines[3:])
    assert (again.run, again.events) == (since.run, since.events)


def test_the_lines_come_back_from_the_log_exactly() -> None:
    run = a_run()
    odd = b'{"ts": "2026-03-04T05:06:07.089Z", "run_id":"r-1","event":"run_start","total_nodes":1}'
    lines = [START, odd, ASKS, END, LATE]

    batches = [push(run, *lines[:2]), push(run, *lines[2:4]), push(run, lines[4])]

    assert list(project(events(batches))) == lines


def test_time_never_goes_backwards_in_the_log() -> None:
    early = line("tool_invocation", ts="2020-01-01T00:00:00.000Z")
    run = a_run()

    log = events([push(run, START), push(run, early)])

    assert [e.timestamp for e in log] == sorted(e.timestamp for e in log)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([START], "running"),
        ([START, ASKS], "waiting-input"),
        ([START, ASKS, GOES_ON], "running"),
        ([START, END], "completed"),
        ([START, line("agent_run_end", outcome="aborted")], "cancelled"),
        ([START, line("agent_run_end", outcome="escaped")], "failed"),
        ([line("run_start")], "running"),
        ([line("run_start"), line("run_end", outcome="clean")], "completed"),
        ([line("run_start"), line("run_end", outcome="stuck", exit_code=1)], "failed"),
        ([line("run_start"), START, END], "running"),
    ],
)
def test_the_row_and_the_snapshot_say_how_the_run_stands(lines: list[bytes], status: str) -> None:
    batch = push(a_run(), *lines)

    assert (batch.run.status, shown(batch)["status"]) == (status, status)
    assert (batch.run.ended_at is not None) == (status in {"completed", "failed", "cancelled"})


def test_the_snapshot_shows_agents_as_nodes_and_where_the_run_comes_from() -> None:
    batch = push(a_run(), START, ASKS)

    snapshot = shown(batch)

    assert snapshot["metadata"] == {"source": "kahn", "runId": "r-1"}
    assert snapshot["workflowId"] == "kahn.observed"
    assert snapshot["owner"] == {"tenant": "acme"}
    assert snapshot["currentNodeId"] == AGENT
    assert snapshot["nodeStates"][AGENT]["status"] == "suspended"
    assert snapshot["lastSequence"] == batch.run.last_sequence


def test_an_agent_that_failed_shows_why() -> None:
    failed = move(0, "thinking", "failed", reason="out of patience")

    node = shown(push(a_run(), START, failed))["nodeStates"][AGENT]

    assert (node["status"], node["error"]["message"]) == ("failed", "out of patience")


def test_a_check_of_the_whole_run_is_an_annotation_of_it() -> None:
    [note] = push(a_run(), START, LATE).annotations

    document = json.loads(note.body)
    assert document["signal"] == {"kind": "label", "label": "policy:licence=warn"}
    assert document["actor"] == {"principalRef": "kahn:r-1"}
    assert document["target"] == {"runId": observed_run_id("acme", "r-1")}


def test_a_producer_s_clock_moves_no_run_out_of_the_host_s_time() -> None:
    ahead = push(a_run(), line("run_start", ts="9999-12-31T23:59:59.999Z"))
    behind = push(a_run("r-2"), line("run_start", run_id="r-2", ts="0001-01-01T00:00:00.000Z"))

    assert ahead.run.created_at == NOW
    assert behind.run.created_at == 0


def test_only_events_that_the_host_advertises_are_derived() -> None:
    run = ObservedRun("acme", "r-1", log_rules("agent.decided"))

    types = [e.type for e in events([push(run, START, END)])]

    assert "agent.decided" not in types
    assert "kahn.agent_run_end" in types
    assert types[-1] == "run.completed"


def test_the_log_of_a_line_with_a_secret_in_it_is_redacted() -> None:
    secret = "sk-" + "proj4bC9dE2fG7hJ1kL5mN8pQ3"
    leaking = [
        line("agent_run_start", task=secret, own={secret: [secret]}),
        line("tool_invocation", input_summary=secret, error=secret),
        move(1, "reflect", "thinking", reason=secret).replace(b"sk-", b"sk\\u002d"),
        line("audit_checkpoint", agent_id=None, checkpoint_id=secret.lower(), result="warn"),
    ]

    batch = push(a_run(), *leaking)

    [note] = batch.annotations
    stored = b"".join([*(event.body for event in batch.events), note.body])
    assert secret.encode() not in stored
    assert secret.lower().encode() not in stored
    assert b"u002d" not in stored
    assert stored.count(b"[REDACTED]") >= 8


def test_an_agent_whose_id_looks_like_a_secret_has_another_name_on_the_log() -> None:
    names = ["sk-" + "a1b2c3d4e5f6g7h8i9j0", "sk-" + "z1b2c3d4e5f6g7h8i9j0"]
    lines = [line("agent_run_start", agent_id=name) for name in names]

    batch = push(a_run(), *lines)

    assert len(shown(batch)["nodeStates"]) == 2
    assert all(name not in str(batch) for name in names)


def test_an_event_that_the_agent_type_may_not_emit_is_left_out() -> None:
    nothing = log_rules("agent.reasoned", "agent.decided", "agent.toolCalled")
    run = ObservedRun("acme", "r-1", nothing)

    types = [e.type for e in events([push(run, START, line("tool_invocation"), END)])]

    assert [each for each in types if each.startswith("agent.")] == []


def test_an_annotation_that_arises_from_an_audit_comes_with_its_audit_entry() -> None:
    [note] = push(a_run(), START, LATE).annotations

    assert note.audit is not None
    assert note.audit.tenant == "acme"
