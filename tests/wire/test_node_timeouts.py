"""Nodes that wait: their own time ends, and with it what they wait for."""

from __future__ import annotations

import pytest

from tests.wire.agent_definitions import DONE, children, next_worker, supervised
from tests.wire.client import Wire
from tests.wire.definitions import delay, node, workflow
from tests.wire.waiting import ACCEPT, gate, taken
from wopr.protocol.documents import JsonObject

# Long enough for a busy host to begin the wait.
SOON: JsonObject = {"timeout": 4000}
# Longer than any caller waits here.
LONG_MS = 60_000


def limited(definition: JsonObject, node_id: str) -> JsonObject:
    """The same workflow, one node of which has little time."""
    nodes = [
        each | {"settings": SOON} if each["id"] == node_id else each for each in definition["nodes"]
    ]
    return definition | {"nodes": nodes}


def timed_out(wire: Wire, definition: JsonObject) -> str:
    """Run a workflow, see it fail of a node's time, and return the run's id."""
    found = wire.run(wire.register(definition))
    assert (found["status"], found["error"]["code"]) == ("failed", "node_timeout")
    return str(found["runId"])


@pytest.mark.parametrize("waits", [gate(), delay("wait", LONG_MS)], ids=["person", "timer"])
def test_a_sub_workflow_that_takes_too_long_is_cancelled_and_fails_its_node(
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


def test_a_delay_that_is_longer_than_its_nodes_time_fails_in_time(acme: Wire) -> None:
    timed_out(acme, limited(workflow([delay("wait", LONG_MS)]), "wait"))


def test_a_childs_own_wait_for_a_person_does_not_count_as_the_childs_time(acme: Wire) -> None:
    child_id = acme.register(limited(workflow([gate()]), "gate"))
    call = node("call", "core.subWorkflow", config={"workflowId": child_id})
    slow = delay("slow", SOON["timeout"] + 500)
    run_id = acme.create(acme.register(workflow([call, slow], edges=[])))
    acme.events_until(run_id, "node.completed")

    [child] = children(acme.log(run_id))

    assert taken(acme, child, "gate", ACCEPT) == "completed"
    assert acme.finished(run_id)["status"] == "completed"
