"""The host's own runs are in the fleet automatically, once, and with the lines of their log."""

from __future__ import annotations

import json

import pytest

from tests.support.agent_definitions import agent_name, mock, scripted
from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.kahn import ASKS, KahnRun, agents_of, push, push_run, stored_lines, transitions
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores

THINKS = "conformance-agent-reasoning"
DOUBTS: JsonObject = {"mockDecision": {"decision": {"next": "x"}, "confidence": 0.5}}


def unsure(wire: Wire) -> str:
    """Return a workflow whose agent waits for a person without a deadline."""
    return wire.register(scripted([mock(agent={"agentId": agent_name()}, **DOUBTS)]))


def waiting(wire: Wire, run_id: str) -> JsonObject:
    """Return the agent of a run, once the fleet shows that it waits."""

    def waits() -> bool:
        found = wire.get(f"/api/runs/{run_id}")
        return found.status_code == 200 and found.json()["agents"][0]["waiting_s"] is not None

    eventually(waits)
    return agents_of(wire, run_id)[0]


def in_fleet(wire: Wire, run_id: str) -> list[bytes]:
    """Return the lines of a run in the fleet once it has all those of the run's log."""
    eventually(
        lambda: (
            bool(stored_lines(wire, run_id))
            and stored_lines(wire, run_id) == transitions(wire, run_id)
        )
    )
    return stored_lines(wire, run_id)


def test_a_run_is_in_the_fleet_with_the_lines_of_its_log(acme: Wire) -> None:
    run_id = acme.run(THINKS)["runId"]

    lines = [json.loads(each) for each in in_fleet(acme, run_id)]

    assert lines[0]["event"] == "agent_run_start"
    assert lines[-1]["outcome"] == "converged"
    found = acme.document(f"/api/runs/{run_id}")["run"]
    assert (found["source"], found["openwop_run_id"]) == ("host", run_id)


def test_another_tenant_s_fleet_does_not_contain_it(acme: Wire, globex: Wire) -> None:
    run_id = acme.run(THINKS)["runId"]
    in_fleet(acme, run_id)

    assert globex.get(f"/api/runs/{run_id}").status_code == 404
    assert globex.get(f"/api/runs/{run_id}/transitions").status_code == 404
    assert globex.get(f"/v1/runs/{run_id}/transitions").status_code == 404


def test_a_waiting_agent_of_this_host_is_answered_in_the_inbox(acme: Wire) -> None:
    run_id = acme.create(unsure(acme))
    agent = waiting(acme, run_id)
    [item] = acme.document("/v1/interrupts", params={"runId": run_id})["items"]
    before = stored_lines(acme, run_id)

    acme.post(item["answerUrl"], {"resumeValue": {"ratified": True}})

    assert agent["openwop_interrupt_id"] == item["interruptId"]
    assert agent["waiting_since"] == item["requestedAt"]
    assert agent["last_status"] == "blocked-on-clarification"
    acme.finished(run_id)
    after = in_fleet(acme, run_id)
    assert after[: len(before)] == before
    [ended] = agents_of(acme, run_id)
    assert (ended["outcome"], ended["waiting_s"]) == ("converged", None)
    assert ended["openwop_interrupt_id"] is None


def test_an_externally_waiting_agent_shows_since_when_and_no_link_to_answer(acme: Wire) -> None:
    story = KahnRun()
    push_run(acme, story.start(), story.move(0, *ASKS))

    [agent] = agents_of(acme, story.run_id)

    assert agent["waiting_since"] == story.ts
    assert agent["waiting_s"] >= 0
    assert agent["openwop_interrupt_id"] is None


def test_the_lines_of_a_live_run_are_a_prefix_of_its_final_ones(acme: Wire) -> None:
    run_id = acme.create(unsure(acme))
    waiting(acme, run_id)
    first = transitions(acme, run_id)

    acme.post(f"/v1/runs/{run_id}/cancel")

    acme.finished(run_id)
    assert transitions(acme, run_id)[: len(first)] == first
    assert json.loads(in_fleet(acme, run_id)[-1])["outcome"] == "aborted"


def test_each_annotation_becomes_one_audit(acme: Wire) -> None:
    run_id = acme.run(THINKS)["runId"]
    before = in_fleet(acme, run_id)
    for rating in (5, 3, 1):
        signal = {"kind": "rating", "rating": rating}
        acme.post(f"/v1/runs/{run_id}/annotations", {"signal": signal, "note": "words"})
        in_fleet(acme, run_id)

    audits = [json.loads(each) for each in in_fleet(acme, run_id)[len(before) :]]

    assert [audit["result"] for audit in audits] == ["pass", "warn", "fail"]
    assert {audit["checkpoint_id"] for audit in audits} == {"feedback:rating"}
    assert "words" not in str(audits)


def test_a_run_without_agents_is_in_the_fleet_only_with_its_annotations(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]
    silent = transitions(acme, run_id)

    acme.post(f"/v1/runs/{run_id}/annotations", {"signal": {"kind": "flag"}})

    [audit] = in_fleet(acme, run_id)
    assert silent == []
    assert json.loads(audit)["agent_id"] is None


def test_a_replay_is_not_counted_again(acme: Wire) -> None:
    run_id = acme.run(THINKS)["runId"]
    fork = acme.post(f"/v1/runs/{run_id}:fork", {"mode": "replay"}).json()["runId"]
    acme.finished(fork)
    later = acme.run(THINKS)["runId"]

    in_fleet(acme, later)

    assert stored_lines(acme, fork) == []
    assert transitions(acme, fork) != []


def test_a_pushed_export_of_the_host_is_not_a_second_run(acme: Wire) -> None:
    run_id = acme.run(THINKS)["runId"]
    lines = transitions(acme, run_id)

    # At once: whether the fleet already has the run makes no difference.
    answer = push(acme, *lines)

    assert answer.json() == {"accepted": 0, "duplicate": len(lines), "runs": [run_id]}
    assert acme.document(f"/api/runs/{run_id}")["run"]["source"] == "host"
    assert acme.get(f"/v1/runs/kahn-{run_id}").status_code == 404


def test_a_push_cannot_add_lines_to_the_host_s_runs(acme: Wire) -> None:
    run_id = acme.run(THINKS)["runId"]
    lines = transitions(acme, run_id)
    more = KahnRun().check(run_id=run_id, agent_id=None)

    answer = push(acme, *lines, more, more)

    assert answer.status_code == 409
    assert answer.json()["error"] == "would_rewrite"
    named = [each["line"] for each in answer.json()["details"]["errors"]]
    assert named == [len(lines) + 1, len(lines) + 2]
    assert in_fleet(acme, run_id) == lines


def test_a_run_without_lines_accepts_no_pushed_ones(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]

    foreign, story = KahnRun(), KahnRun()
    answer = push(acme, foreign.start(), story.start(run_id=run_id), story.call(run_id=run_id))

    assert answer.status_code == 409
    assert answer.json()["error"] == "would_rewrite"
    errors = answer.json()["details"]["errors"]
    assert [each["line"] for each in errors] == [2, 3]
    assert all(run_id in each["message"] for each in errors)
    assert stored_lines(acme, run_id) == stored_lines(acme, foreign.run_id) == []


def test_another_tenant_can_push_a_run_of_the_same_name(acme: Wire, globex: Wire) -> None:
    run_id = acme.run(THINKS)["runId"]
    lines = transitions(acme, run_id)

    seen = push_run(globex, *lines)

    assert seen.startswith(f"kahn-{run_id}-")
    assert transitions(globex, seen) == lines
    assert in_fleet(acme, run_id) == lines
