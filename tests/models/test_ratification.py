"""A person's word on a decision: it counts for what they were shown, and for nothing else."""

from __future__ import annotations

import json

import pytest

from tests.models.asking import payloads, ran
from tests.models.openai_server import OpenAiServer
from tests.models.turns import Say
from tests.wire.client import Wire
from tests.wire.forking import fork
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
    """A run that waits for a person's word on billing; asked again, the model says the rest."""
    _, log = ran(wire, server, [unsure("billing"), *later], kind, CONFIGS[kind])
    return str(log[0]["runId"])


def accept(wire: Wire, run_id: str) -> None:
    body = {"resumeValue": {"action": "accept"}}
    answer = wire.post(f"/v1/runs/{run_id}/interrupts/ask", body)
    assert answer.status_code == 200, answer.text


def asked(wire: Wire, run_id: str, times: int) -> list[str]:
    """Wait until the run has asked that often, and return the teams that it asked about."""
    log = wire.log(run_id)
    while len(found := payloads(log, "interrupt.requested")) < times:
        ended = [e for e in log if e["type"] in ("run.completed", "run.failed")]
        assert not ended, ended
        wire.poll(run_id, lastSequence=len(log) - 1, timeout=1)
        log = wire.log(run_id)
    return [request["data"]["decision"]["team"] for request in found]


def team_of(snapshot: JsonObject) -> str:
    """The team in the node's result; an agent's and a structured node's look alike."""
    team: str = snapshot["outputs"]["ask"]["result"]["team"]
    return team


@BOTH
def test_a_yes_to_one_decision_does_not_ratify_another_that_a_branch_comes_to(
    acme: Wire, server: OpenAiServer, kind: str
) -> None:
    source = waiting(acme, server, kind, unsure("legal"))
    branch = fork(acme, source, "branch", fromSeq=len(acme.log(source)))

    accept(acme, branch)

    assert asked(acme, branch, 2) == ["billing", "legal"]
    accept(acme, branch)
    assert team_of(acme.finished(branch)) == "legal"


@BOTH
def test_an_answer_from_before_the_fork_point_does_not_let_another_decision_pass(
    acme: Wire, server: OpenAiServer, kind: str
) -> None:
    source = waiting(acme, server, kind, unsure("legal"))
    accept(acme, source)
    acme.finished(source)
    after = acme.types(source).index("interrupt.resolved") + 2

    branch = fork(acme, source, "branch", fromSeq=after)

    assert asked(acme, branch, 2) == ["billing", "legal"]


@BOTH
def test_a_yes_still_holds_for_the_decision_that_it_was_given_to(
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
    asked(acme, branch, 2)
    accept(acme, branch)
    acme.finished(branch)

    log = acme.log(branch)

    began, ended = (
        [each["invocationId"] for each in payloads(log, f"agent.invocation.{event}")]
        for event in ("started", "completed")
    )
    assert began == ended
