"""A person's answer to a decision applies only to the decision that was shown."""

from __future__ import annotations

import json

import pytest

from tests.models.model_runs import payloads, run_node
from tests.models.openai_server import OpenAiServer
from tests.models.turns import Say
from tests.support.client import Wire
from tests.support.forks import fork
from wopr.protocol.documents import JsonObject

DECISION: JsonObject = {
    "type": "object",
    "properties": {"team": {"type": "string"}, "confidence": {"type": "number"}},
    "required": ["team", "confidence"],
}
CONFIGS = {"agent": {"schema": DECISION}, "structured": {"schema": DECISION}}
BOTH = pytest.mark.parametrize("kind", list(CONFIGS))


def unsure(team: str) -> Say:
    return Say(json.dumps({"team": team, "confidence": 0.3}))


def waiting(wire: Wire, server: OpenAiServer, kind: str, *later: Say) -> str:
    """Start a run that waits for a decision on billing; further answers of the model follow."""
    _, log = run_node(wire, server, [unsure("billing"), *later], kind, CONFIGS[kind])
    return str(log[0]["runId"])


def accept(wire: Wire, run_id: str) -> None:
    body = {"resumeValue": {"action": "accept"}}
    answer = wire.post(f"/v1/runs/{run_id}/interrupts/ask", body)
    assert answer.status_code == 200, answer.text


def asked_teams(wire: Wire, run_id: str, times: int) -> list[str]:
    """Wait until the run has asked so often, and return the teams that it asked about."""
    log = wire.events_until(run_id, "interrupt.requested", times=times)
    found = payloads(log, "interrupt.requested")
    return [request["data"]["decision"]["team"] for request in found]


def team_of(snapshot: JsonObject) -> str:
    """Return the team in the node's result; agents and structured nodes have the same form."""
    team: str = snapshot["outputs"]["ask"]["result"]["team"]
    return team


@BOTH
def test_a_yes_to_one_decision_does_not_ratify_another_decision_of_a_branch(
    acme: Wire, server: OpenAiServer, kind: str
) -> None:
    source = waiting(acme, server, kind, unsure("legal"))
    branch = fork(acme, source, "branch", fromSeq=len(acme.log(source)))

    accept(acme, branch)

    assert asked_teams(acme, branch, 2) == ["billing", "legal"]
    accept(acme, branch)
    assert team_of(acme.finished(branch)) == "legal"


@BOTH
def test_an_answer_before_the_fork_point_does_not_ratify_another_decision(
    acme: Wire, server: OpenAiServer, kind: str
) -> None:
    source = waiting(acme, server, kind, unsure("legal"))
    accept(acme, source)
    acme.finished(source)
    after = acme.types(source).index("interrupt.resolved") + 2

    branch = fork(acme, source, "branch", fromSeq=after)

    assert asked_teams(acme, branch, 2) == ["billing", "legal"]


@BOTH
def test_a_yes_still_applies_to_the_decision_it_was_given_to(
    acme: Wire, server: OpenAiServer, kind: str
) -> None:
    source = waiting(acme, server, kind, unsure("billing"))
    accept(acme, source)
    acme.finished(source)
    after = acme.types(source).index("interrupt.resolved") + 2

    branch = fork(acme, source, "branch", fromSeq=after)

    assert team_of(acme.finished(branch)) == "billing"
    assert len(payloads(acme.log(branch), "interrupt.requested")) == 1


def test_an_invocation_ends_once_however_often_a_person_is_asked(
    acme: Wire, server: OpenAiServer
) -> None:
    source = waiting(acme, server, "agent", unsure("legal"))
    branch = fork(acme, source, "branch", fromSeq=len(acme.log(source)))
    accept(acme, branch)
    asked_teams(acme, branch, 2)
    accept(acme, branch)
    acme.finished(branch)

    log = acme.log(branch)

    began, ended = (
        [each["invocationId"] for each in payloads(log, f"agent.invocation.{event}")]
        for event in ("started", "completed")
    )
    assert began == ended
