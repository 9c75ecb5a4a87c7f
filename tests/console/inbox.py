"""Waits for tests of the inbox, and how to answer them."""

from __future__ import annotations

import httpx

from tests.support.agent_definitions import mock, scripted
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import node
from tests.support.interrupts import (
    payload,
    until_waiting,
)
from wopr.protocol.documents import Json

ACTIONS = ["accept", "reject", "refine", "edit-accept", "ask"]
AGENT = {"agentId": "core.conformance.agent", "modelClass": "reasoning"}
DECISION = {"topic": "delivery"}


def answered(person: Person, run_id: str, node_id: str = "gate", **fields: str) -> httpx.Response:
    """Send the form of a wait as its page does."""
    path = f"/inbox/{run_id}/{node_id}"
    form = Markup(person.get(path).text)
    hidden = {e["name"]: e["value"] for e in form.all("input", type="hidden") if "name" in e}
    wanted = ("csrf", "interruptId", "next")
    return person.http.post(path, data={n: hidden[n] for n in wanted if n in hidden} | fields)


def went_on(answer: httpx.Response, done: str = "answered") -> None:
    assert answer.status_code == 303, answer.text
    assert f"done={done}" in answer.headers["location"]


def resolved(wire: Wire, run_id: str) -> Json:
    """Return the logged answer."""
    return payload(wire, run_id, "interrupt.resolved")["resumeValue"]


def unsure(wire: Wire) -> str:
    """Start a run whose agent is unsure."""
    doubt = mock(
        agent=AGENT,
        mockReasoning={"summary": "It may be either."},
        mockDecision={"decision": DECISION, "confidence": 0.41},
    )
    run_id = wire.create(wire.register(scripted([doubt, node("after")])))
    until_waiting(wire, run_id)
    return run_id


def pick(run_id: str, node_id: str = "gate", interrupt: str = "int-gate:0") -> dict[str, str]:
    """Return the form fields that select one wait among many."""
    return {f"pick:{run_id}:{node_id}": interrupt}
