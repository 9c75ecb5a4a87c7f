"""Waits that tests of the inbox make, and how they answer them."""

from __future__ import annotations

import httpx

from tests.console.client import Markup, Person
from tests.wire.agent_definitions import mock, scripted
from tests.wire.client import Wire
from tests.wire.definitions import node
from tests.wire.waiting import (
    payload,
    until_waiting,
)
from wopr.protocol.documents import Json

ACTIONS = ["accept", "reject", "refine", "edit-accept", "ask"]
AGENT = {"agentId": "core.conformance.agent", "modelClass": "reasoning"}
DECISION = {"topic": "delivery"}


def answered(person: Person, run_id: str, node_id: str = "gate", **fields: str) -> httpx.Response:
    """Send the form of a wait as its page has it."""
    path = f"/inbox/{run_id}/{node_id}"
    form = Markup(person.get(path).text)
    hidden = {e["name"]: e["value"] for e in form.all("input", type="hidden") if "name" in e}
    wanted = ("csrf", "interruptId", "next")
    return person.http.post(path, data={n: hidden[n] for n in wanted if n in hidden} | fields)


def went_on(answer: httpx.Response, done: str = "answered") -> None:
    assert answer.status_code == 303, answer.text
    assert f"done={done}" in answer.headers["location"]


def resolved(wire: Wire, run_id: str) -> Json:
    """What the log says that the answer was."""
    return payload(wire, run_id, "interrupt.resolved")["resumeValue"]


def unsure(wire: Wire) -> str:
    """A run whose agent is not sure enough."""
    doubt = mock(
        agent=AGENT,
        mockReasoning={"summary": "It may be either."},
        mockDecision={"decision": DECISION, "confidence": 0.41},
    )
    run_id = wire.create(wire.register(scripted([doubt, node("after")])))
    until_waiting(wire, run_id)
    return run_id


def pick(run_id: str, node_id: str = "gate", interrupt: str = "int-gate:0") -> dict[str, str]:
    """The fields of a form that choose one wait among many."""
    return {f"pick:{run_id}:{node_id}": interrupt}
