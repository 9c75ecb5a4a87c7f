"""Runs that wait, and answers to them."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import msgspec

from tests.wire.client import DEADLINE_SECONDS, Wire
from tests.wire.definitions import node, workflow
from tests.wire.host import API_KEYS
from wopr.protocol.documents import Json, JsonObject
from wopr.runtime.host_secret import host_secret
from wopr.security.seal import derive
from wopr.security.tokens import InterruptToken, sign

ACCEPT = {"action": "accept"}
REJECT = {"action": "reject"}
REFINE = {"action": "refine", "refineFeedback": {"scope": "whole", "text": "shorter"}}
EDIT = {"action": "edit-accept", "editedArtifactData": {"text": "mine"}}
# Every action that an approval can offer.
ALL = ["accept", "reject", "refine", "edit-accept", "ask"]
EVENT = {"orderId": "fixture-order-1", "status": "completed"}
SUSPENDED = ["run.started", "node.started", "node.suspended", "interrupt.requested"]


def name_of(key: str) -> str:
    """The name that the host knows the holder of a configured key by."""
    return f"env-{[entry.split(':')[0] for entry in API_KEYS.split(',')].index(key) + 1}"


def answer(wire: Wire, run_id: str, node_id: str, value: Json, **options: Json) -> httpx.Response:
    """Answer by run and node."""
    path = f"/v1/runs/{run_id}/interrupts/{node_id}"
    return wire.post(path, {"resumeValue": value}, **options)


def taken(wire: Wire, run_id: str, node_id: str, value: Json) -> str:
    """Give an answer that is taken, and return the run's status right after."""
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
    """A gate; an approval by default."""
    title = {"title": "Fine?"} if type_id == "core.approvalGate" else {}
    return node(node_id, type_id, config=title | config)


def external(node_id: str = "wait", **config: Json) -> JsonObject:
    """A wait for an event of an order."""
    data = {"eventType": "order.paid", "correlation": {"orderId": "o1"}}
    return gate(node_id, "core.interrupt", kind="external-event", data=data, **config)


def waiting(wire: Wire, *nodes: JsonObject, **fields: Json) -> str:
    """A run of a new workflow with these nodes, one after the other, that waits."""
    run_id = wire.create(wire.register(workflow(nodes, **fields)))
    until_waiting(wire, run_id)
    return run_id


def until_waiting(wire: Wire, run_id: str) -> JsonObject:
    """Wait until the run waits, and return its snapshot."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := wire.snapshot(run_id))["status"].startswith("waiting-"):
        assert time.monotonic() < deadline, found
        assert found["status"] in ("running", "pending"), found
        time.sleep(0.01)
    return found


def token_of(wire: Wire, run_id: str) -> str:
    """The token that the run's snapshot shows."""
    return str(until_waiting(wire, run_id)["interrupt"]["interruptToken"])


def events(wire: Wire, run_id: str, event_type: str) -> list[JsonObject]:
    """The run's events of one type."""
    return [event for event in wire.log(run_id) if event["type"] == event_type]


def payload(wire: Wire, run_id: str, event_type: str) -> JsonObject:
    """The payload of the only event of this type."""
    [found] = events(wire, run_id, event_type)
    body: JsonObject = found["payload"]
    return body


def inbox(wire: Wire, **query: Json) -> list[JsonObject]:
    """One page of the inbox."""
    items: list[JsonObject] = wire.document("/v1/interrupts", params=query)["items"]
    return items


def signed(data_dir: Path, **members: Json) -> str:
    """A token with the host's own signature, which says whatever the test wants."""
    base = {"nodeId": "gate", "interruptId": "int-gate:0", "intent": "resolve"}
    key = derive(host_secret(data_dir, {}), "interrupt-token")
    return sign(msgspec.convert(base | members, InterruptToken), key)
