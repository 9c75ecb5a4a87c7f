"""Waiting runs and their answers."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually
from tests.support.host import API_KEYS
from wopr.process.keys import load_host_key
from wopr.protocol.documents import Json, JsonObject
from wopr.security.encryption import derive
from wopr.security.tokens import InterruptToken, sign_interrupt_token

ACCEPT = {"action": "accept"}
REJECT = {"action": "reject"}
REFINE = {"action": "refine", "refineFeedback": {"scope": "whole", "text": "shorter"}}
EDIT = {"action": "edit-accept", "editedArtifactData": {"text": "mine"}}
# Every action that an approval can offer.
ALL = ["accept", "reject", "refine", "edit-accept", "ask"]
EVENT = {"orderId": "fixture-order-1", "status": "completed"}
SUSPENDED = ["run.started", "node.started", "node.suspended", "interrupt.requested"]


def principal_of(key: str) -> str:
    """Return the principal of a configured key."""
    return f"env-{[entry.split(':')[0] for entry in API_KEYS.split(',')].index(key) + 1}"


def answer(wire: Wire, run_id: str, node_id: str, value: Json, **options: Json) -> httpx.Response:
    """Answer by run and node."""
    path = f"/v1/runs/{run_id}/interrupts/{node_id}"
    return wire.post(path, {"resumeValue": value}, **options)


def accepted(wire: Wire, run_id: str, node_id: str, value: Json) -> str:
    """Give an answer that is accepted, and return the run's status after it."""
    response = answer(wire, run_id, node_id, value)
    assert response.status_code == 200, response.text
    body: JsonObject = response.json()
    assert (body["runId"], body["nodeId"]) == (run_id, node_id)
    return str(body["status"])


def refused(wire: Wire, run_id: str, node_id: str, value: Json) -> tuple[int, str]:
    """Give an answer that is refused, and return the status and the code."""
    response = answer(wire, run_id, node_id, value)
    return response.status_code, response.json()["error"]


def by_token(wire: Wire, token: str, value: Json) -> httpx.Response:
    """Answer by token."""
    return wire.post(f"/v1/interrupts/{token}", {"resumeValue": value})


def gate(node_id: str = "gate", type_id: str = "core.approvalGate", **config: Json) -> JsonObject:
    """Return a gate; an approval by default."""
    title = {"title": "Fine?"} if type_id == "core.approvalGate" else {}
    return node(node_id, type_id, config=title | config)


def external(node_id: str = "wait", **config: Json) -> JsonObject:
    """Return a wait for an event of an order."""
    data = {"eventType": "order.paid", "correlation": {"orderId": "o1"}}
    return gate(node_id, "core.interrupt", kind="external-event", data=data, **config)


def waiting_run(wire: Wire, *nodes: JsonObject, **fields: Json) -> str:
    """Start a run of a new workflow with these nodes in sequence, and wait until it waits."""
    run_id = wire.create(wire.register(workflow(nodes, **fields)))
    until_waiting(wire, run_id)
    return run_id


def until_waiting(wire: Wire, run_id: str) -> JsonObject:
    """Wait until the run waits, and return its snapshot."""

    def waiting_snapshot() -> JsonObject | None:
        found = wire.snapshot(run_id)
        if found["status"].startswith("waiting-"):
            return found
        assert found["status"] in ("running", "pending"), found
        return None

    found = eventually(waiting_snapshot)
    assert found is not None
    return found


def token_of(wire: Wire, run_id: str) -> str:
    """Return the token in the run's snapshot."""
    return str(until_waiting(wire, run_id)["interrupt"]["interruptToken"])


def events(wire: Wire, run_id: str, event_type: str) -> list[JsonObject]:
    """Return the run's events of one type."""
    return [event for event in wire.log(run_id) if event["type"] == event_type]


def payload(wire: Wire, run_id: str, event_type: str) -> JsonObject:
    """Return the payload of the only event of this type."""
    [found] = events(wire, run_id, event_type)
    body: JsonObject = found["payload"]
    return body


def inbox(wire: Wire, **query: Json) -> list[JsonObject]:
    """Return one page of the inbox."""
    items: list[JsonObject] = wire.document("/v1/interrupts", params=query)["items"]
    return items


def signed(data_dir: Path, **members: Json) -> str:
    """Return a token with the host's own signature and any content."""
    base = {"nodeId": "gate", "interruptId": "int-gate:0", "intent": "resolve"}
    key = derive(load_host_key(data_dir, {}), "interrupt-token")
    return sign_interrupt_token(msgspec.convert(base | members, InterruptToken), key)
