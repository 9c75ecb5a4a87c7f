"""Demo runs for the inbox: one waiting run for each kind of interrupt."""

from __future__ import annotations

from typing import Final

import httpx

from docs.demo_parts import agent, node, started, workflow
from wopr.protocol.documents import Json, JsonObject

_LETTER: Final = (
    "Dear Ms Berger,\n\nwe are sorry that your lamp arrived broken. We have sent a new one today and "
    "you need not return the old one.\n\nKind regards"
)


def _gate(name: str, **config: Json) -> JsonObject:
    return node("gate", name, "core.approvalGate", config=config)


def letter() -> JsonObject:
    """Return the workflow of a reply that a person can accept, edit or send back."""
    draft = agent(
        "draft",
        "Write the reply",
        "local.shop.writer",
        mockReasoning={"summary": "The customer is upset but polite; an apology and a new lamp."},
        mockDecision={"decision": {"tone": "friendly"}, "confidence": 0.91},
    )
    gate = node(
        "send",
        "Send the reply",
        "core.approvalGate",
        config={
            "title": "Send this reply to Ms Berger?",
            "description": "The reply is sent by mail when a person accepts it.",
            "actions": ["accept", "reject", "refine", "edit-accept", "ask"],
            "timeoutMs": 4 * 3_600_000,
        },
        inputs={"artifact": {"type": "expression", "expression": "variables.letter"}},
    )
    text = {"name": "letter", "type": "string", "defaultValue": _LETTER}
    return workflow("customer-reply", "Customer reply", [draft, gate], variables=[text])


def questions() -> JsonObject:
    """Return a workflow that asks questions with answers of different types."""
    questions = [
        {
            "id": "carrier",
            "question": "Which carrier takes it?",
            "schema": {"enum": ["DHL", "UPS", "Hermes"]},
        },
        {
            "id": "weight",
            "question": "How heavy is the parcel, in kg?",
            "schema": {"type": "number", "exclusiveMinimum": 0},
        },
        {"id": "note", "question": "What should the driver know?"},
    ]
    gate = node(
        "ask", "Ask the warehouse", "core.clarificationGate", config={"questions": questions}
    )
    return workflow("ship-order", "Ship an order", [gate])


def quorum() -> JsonObject:
    """Return a workflow with a gate that needs two approvals."""
    gate = _gate("Raise the limit", title="Raise the refund limit to 500 EUR?", requiredApprovals=2)
    return workflow("policy-change", "Policy change", [gate])


def conversation() -> JsonObject:
    """Return a workflow with a conversation."""
    prompt = "Sales fell by 12 % in the north last week. Shall I look at prices or at stock first?"
    gate = node("talk", "Plan the analysis", "core.conversationGate", config={"prompt": prompt})
    return workflow("weekly-analysis", "Weekly analysis", [gate])


def payment() -> JsonObject:
    """Return a workflow that waits for an external event."""
    data = {"eventType": "payment.settled", "correlation": {"orderId": "A-1077"}}
    config = {"kind": "external-event", "data": data}
    gate = node("wait", "Wait for the payment", "core.interrupt", config=config)
    return workflow("settle-order", "Settle an order", [gate])


def make_waits(http: httpx.Client) -> None:
    """Start one run of each workflow."""
    for definition in (payment(), conversation(), quorum(), questions(), letter()):
        http.post("/v1/workflows", json=definition).raise_for_status()
        started(http, definition["id"], ["demo"])
