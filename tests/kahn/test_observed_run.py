"""A pushed run as it is stored: its batch, its row, and its snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.support.kahn_lines import AGENT, line, log_rules, move
from wopr.kahn.bridge.projection import project
from wopr.kahn.observed.run import ObservedRun
from wopr.protocol.errors import Conflict
from wopr.protocol.events import RunEvent
from wopr.protocol.observed_ids import is_observed_run, observed_run_id, require_own_run
from wopr.store.port import Batch
from wopr.store.tables.runs.runs import check_batch

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


def test_an_id_is_stable_for_a_tenant_and_run_and_unique() -> None:
    ids = {observed_run_id(tenant, run) for tenant in ("a", "b", "a\nb") for run in ("x", "y")}

    assert len(ids) == 6
    assert observed_run_id("a", "x") in ids
    assert all(is_observed_run(each) and len(each) <= 128 for each in ids)
    assert len(observed_run_id("a", "x" * 64)) <= 128


def test_an_observed_run_cannot_be_controlled_here() -> None:
    require_own_run("0198c1f2-7b6a-7c3e-9d55-0f2a8c1b4e70")

    with pytest.raises(Conflict, match="observed") as refused:
        require_own_run(observed_run_id("acme", "r-1"))

    assert refused.value.code == "run_state_conflict"


def test_a_run_pushed_in_parts_equals_the_run_pushed_at_once() -> None:
    lines = [START, move(0, "thinking", "tool_call"), line("tool_invocation"), ASKS, GOES_ON, END]
    pieces = a_run()

    batches = [push(pieces, each) for each in lines]

    whole = push(a_run(), *lines)
    assert [e.type for e in events(batches)] == [e.type for e in events([whole])]
    assert batches[-1].run == whole.run


def test_a_run_restored_from_its_log_continues_like_a_followed_one() -> None:
    lines = [START, ASKS, GOES_ON, ASKS, GOES_ON, line("tool_invocation"), END, LATE]
    followed, first = a_run(), [line("tool_invocation")]
    before = [push(followed, *lines[:3]), push(followed, *first)]
    recalled = a_run()

    recalled.restore_events(events(before))
    recalled.restore_lines(b"\n".join([*lines[:3], *first, *lines[3:]]))

    assert (recalled.next_sequence, recalled.known_lines) == (followed.next_sequence, 4)
    again, since = push(recalled, *lines[3:]), push(followed, *lines[3:])
    assert (again.run, again.events) == (since.run, since.events)


def test_the_lines_are_restored_from_the_log_exactly() -> None:
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
def test_the_row_and_the_snapshot_show_the_state_of_the_run(
    lines: list[bytes], status: str
) -> None:
    batch = push(a_run(), *lines)

    assert (batch.run.status, shown(batch)["status"]) == (status, status)
    assert (batch.run.ended_at is not None) == (status in {"completed", "failed", "cancelled"})


def test_the_snapshot_shows_agents_as_nodes_and_the_origin_of_the_run() -> None:
    batch = push(a_run(), START, ASKS)

    snapshot = shown(batch)

    assert snapshot["metadata"] == {"source": "kahn", "runId": "r-1"}
    assert snapshot["workflowId"] == "kahn.observed"
    assert snapshot["owner"] == {"tenant": "acme"}
    assert snapshot["currentNodeId"] == AGENT
    assert snapshot["nodeStates"][AGENT]["status"] == "suspended"
    assert snapshot["lastSequence"] == batch.run.last_sequence


def test_a_failed_agent_shows_the_reason() -> None:
    failed = move(0, "thinking", "failed", reason="out of patience")

    node = shown(push(a_run(), START, failed))["nodeStates"][AGENT]

    assert (node["status"], node["error"]["message"]) == ("failed", "out of patience")


def test_a_check_of_the_whole_run_is_an_annotation() -> None:
    [note] = push(a_run(), START, LATE).annotations

    document = json.loads(note.body)
    assert document["signal"] == {"kind": "label", "label": "policy:licence=warn"}
    assert document["actor"] == {"principalRef": "kahn:r-1"}
    assert document["target"] == {"runId": observed_run_id("acme", "r-1")}


def test_the_producer_s_clock_does_not_change_the_host_s_time_of_a_run() -> None:
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


def test_a_secret_in_a_line_is_redacted_in_the_log() -> None:
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


def test_an_agent_id_that_looks_like_a_secret_is_replaced_in_the_log() -> None:
    names = ["sk-" + "a1b2c3d4e5f6g7h8i9j0", "sk-" + "z1b2c3d4e5f6g7h8i9j0"]
    lines = [line("agent_run_start", agent_id=name) for name in names]

    batch = push(a_run(), *lines)

    assert len(shown(batch)["nodeStates"]) == 2
    assert all(name not in str(batch) for name in names)


def test_an_event_that_the_agent_type_may_not_emit_is_omitted() -> None:
    nothing = log_rules("agent.reasoned", "agent.decided", "agent.toolCalled")
    run = ObservedRun("acme", "r-1", nothing)

    types = [e.type for e in events([push(run, START, line("tool_invocation"), END)])]

    assert [each for each in types if each.startswith("agent.")] == []


def test_an_annotation_from_an_audit_has_an_audit_entry() -> None:
    [note] = push(a_run(), START, LATE).annotations

    assert note.audit is not None
    assert note.audit.tenant == "acme"
