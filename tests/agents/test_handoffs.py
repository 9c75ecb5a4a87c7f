from __future__ import annotations

from itertools import count

import pytest

from tests.support.simulation import Simulation, edge, node, sketch
from wopr.protocol.documents import Json, JsonObject
from wopr.runs.append import AppendRules, DataLimits, EventBatch, Guard
from wopr.runs.execution.handoffs import add_handoff
from wopr.runs.sensitive_values import SensitiveValues
from wopr.security.redact import Redactor

AGENTS: JsonObject = {"agents": {"supported": True}}
ALICE, BOB = {"agentId": "host:alice"}, {"agentId": "host:bob"}


def reached(second: JsonObject, discovery: JsonObject | None = None) -> EventBatch:
    """Return a run whose first node, Alice's, has completed and whose second is about to start."""
    run = Simulation(sketch([node("first", agent=ALICE), second], [edge("first", "second")]))
    run.take_steps()
    run.settle("first")
    numbers = count()
    return EventBatch(
        run.state,
        AppendRules(
            guard=Guard(AGENTS if discovery is None else discovery),
            redactor=Redactor(),
            new_id=lambda: f"id-{next(numbers)}",
            limits=DataLimits(),
        ),
        sensitive=SensitiveValues(),
        now=run.now,
    )


def handed(batch: EventBatch) -> list[str]:
    add_handoff(batch, batch.state.graph.nodes["second"])
    return [event.type for event in batch.events]


def test_control_is_handed_off_when_both_agents_are_known() -> None:
    assert handed(reached(node("second", agent=BOB))) == ["agent.handoff"]


@pytest.mark.parametrize(
    "second",
    [
        node("second"),
        node("second", agent=ALICE),
        node("second", "core.orchestrator.supervisor", agent=BOB),
    ],
    ids=["no agent", "the same agent", "a supervisor"],
)
def test_nothing_is_handed_off_otherwise(second: JsonObject) -> None:
    assert handed(reached(second)) == []


@pytest.mark.parametrize(
    "discovery",
    [{}, {"agents": {"supported": False}}, {"agents": {"supported": True, "handoffEvents": False}}],
)
def test_a_host_that_does_not_advertise_hand_offs_records_none(discovery: Json) -> None:
    assert handed(reached(node("second", agent=BOB), discovery)) == []
