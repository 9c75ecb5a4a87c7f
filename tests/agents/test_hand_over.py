from __future__ import annotations

from itertools import count

import pytest

from tests.engine.simulation import Simulation, edge, node, sketch
from wopr.protocol.documents import Json, JsonObject
from wopr.runtime.appender import Burst, DataLimits, Guard
from wopr.runtime.handoffs import hand_over
from wopr.runtime.spilling import Spilled
from wopr.runtime.vault import Vault
from wopr.security.redact import Redactor

AGENTS: JsonObject = {"agents": {"supported": True}}
ALICE, BOB = {"agentId": "host:alice"}, {"agentId": "host:bob"}


def reached(second: JsonObject, discovery: JsonObject | None = None) -> Burst:
    """A run whose first node, Alice's, is done and whose second is about to start."""
    run = Simulation(sketch([node("first", agent=ALICE), second], [edge("first", "second")]))
    run.take_steps()
    run.settle("first")
    numbers = count()
    return Burst(
        run.state,
        vault=Vault(),
        redactor=Redactor(),
        guard=Guard(AGENTS if discovery is None else discovery),
        now=run.now,
        new_id=lambda: f"id-{next(numbers)}",
        limits=DataLimits(),
        log_bytes=0,
        spilled=Spilled(),
    )


def handed(burst: Burst) -> list[str]:
    hand_over(burst, burst.state.graph.nodes["second"])
    return [event.type for event in burst.events]


def test_control_goes_over_where_both_agents_are_known() -> None:
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
def test_nothing_goes_over_otherwise(second: JsonObject) -> None:
    assert handed(reached(second)) == []


@pytest.mark.parametrize(
    "discovery",
    [{}, {"agents": {"supported": False}}, {"agents": {"supported": True, "handoffEvents": False}}],
)
def test_a_host_that_does_not_advertise_hand_offs_records_none(discovery: Json) -> None:
    assert handed(reached(node("second", agent=BOB), discovery)) == []
