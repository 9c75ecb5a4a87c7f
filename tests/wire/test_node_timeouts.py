"""Nodes that wait: their time limit applies, and ends what they wait for."""

from __future__ import annotations

import pytest

from tests.support.agent_definitions import DONE, children, next_worker, supervised
from tests.support.client import Wire
from tests.support.definitions import delay, node, workflow
from tests.support.interrupts import ACCEPT, accepted, gate
from wopr.protocol.documents import JsonObject

# Long enough for a busy host to start the wait.
SOON: JsonObject = {"timeout": 4000}
# Longer than any client waits here.
LONG_MS = 60_000


def limited(definition: JsonObject, node_id: str) -> JsonObject:
    """Return the same workflow with a short time limit of one node."""
    nodes = [
        each | {"settings": SOON} if each["id"] == node_id else each for each in definition["nodes"]
    ]
    return definition | {"nodes": nodes}


def timed_out(wire: Wire, definition: JsonObject) -> str:
    """Run a workflow, check that a node timed out, and return the run's id."""
    found = wire.run(wire.register(definition))
    assert (found["status"], found["error"]["code"]) == ("failed", "node_timeout")
    return str(found["runId"])


@pytest.mark.parametrize("waits", [gate(), delay("wait", LONG_MS)], ids=["person", "timer"])
def test_a_child_workflow_that_takes_too_long_is_cancelled_and_fails_its_node(
    acme: Wire, waits: JsonObject
) -> None:
    child_id = acme.register(workflow([waits]))
    call = node("call", "core.subWorkflow", config={"workflowId": child_id})

    run_id = timed_out(acme, limited(workflow([call]), "call"))

    [child] = children(acme.log(run_id))
    assert acme.finished(child)["status"] == "cancelled"
    assert acme.log(child)[-1]["payload"] == {"reason": "parent-cancelled", "parentRunId": run_id}


def test_a_worker_that_takes_too_long_is_cancelled_and_fails_its_dispatch(acme: Wire) -> None:
    worker = acme.register(workflow([delay("wait", LONG_MS)]))

    run_id = timed_out(acme, limited(supervised(next_worker(worker), DONE), "dispatch"))

    [child] = children(acme.log(run_id))
    assert acme.finished(child)["status"] == "cancelled"


def test_a_delay_longer_than_its_node_s_time_limit_fails_in_time(acme: Wire) -> None:
    timed_out(acme, limited(workflow([delay("wait", LONG_MS)]), "wait"))


def test_a_child_s_wait_for_a_person_does_not_count_as_the_child_s_time(acme: Wire) -> None:
    child_id = acme.register(limited(workflow([gate()]), "gate"))
    call = node("call", "core.subWorkflow", config={"workflowId": child_id})
    slow = delay("slow", SOON["timeout"] + 500)
    run_id = acme.create(acme.register(workflow([call, slow], edges=[])))
    acme.events_until(run_id, "node.completed")

    [child] = children(acme.log(run_id))

    assert accepted(acme, child, "gate", ACCEPT) == "completed"
    assert acme.finished(run_id)["status"] == "completed"
