"""Demo runs: a refund that two agents prepare and a person approves, and other runs."""

from __future__ import annotations

from typing import Final

import httpx

from docs.demo_parts import agent, delay, edge, node, started, workflow
from docs.demo_reviews import make_reviews
from docs.demo_waits import make_waits
from wopr.protocol.documents import JsonObject

TRIAGE: Final = "local.shop.triage"
WRITER: Final = "local.shop.writer"


def refund() -> JsonObject:
    """Return the workflow of a refund: two parallel look-ups, a decision, a reply and an approval."""
    nodes = [
        delay("read-ticket", "Read the ticket", 120),
        delay("order", "Look up the order", 340),
        delay("history", "Look up the customer", 210),
        agent(
            "triage",
            "Decide on the refund",
            TRIAGE,
            mockReasoning={
                "summary": "The parcel arrived broken, the photo shows it, and the order is two "
                "days old. The policy covers transport damage up to 200 EUR.",
                "tokenCount": 212,
            },
            mockToolCalls=[
                {
                    "toolId": "shop.orders:read",
                    "arguments": {"orderId": "A-1042"},
                    "result": {"total": 89.9, "currency": "EUR", "placed": "2026-11-13"},
                    "durationMs": 48,
                },
                {
                    "toolId": "shop.policy:find",
                    "arguments": {"topic": "transport damage"},
                    "result": {"limit": 200, "needsPhoto": True},
                    "durationMs": 31,
                },
            ],
            mockHandoff={"toAgentId": WRITER, "reason": "the reply is to be written"},
            mockDecision={"decision": {"refund": 89.9, "currency": "EUR"}, "confidence": 0.93},
        ),
        delay("reply", "Write the reply", 260),
        node(
            "approve",
            "Approve the payment",
            "core.approvalGate",
            config={"title": "Pay back 89.90 EUR for order A-1042?"},
        ),
        node("pay", "Pay back"),
    ]
    edges = [
        edge("read-ticket", "order"),
        edge("read-ticket", "history"),
        edge("order", "triage"),
        edge("history", "triage"),
        edge("triage", "reply"),
        edge("reply", "approve"),
        edge("approve", "pay"),
    ]
    return workflow("refund-request", "Refund request", nodes, edges=edges)


def unsure() -> JsonObject:
    """Return a workflow whose agent has low confidence."""
    classify = agent(
        "classify",
        "Classify the complaint",
        TRIAGE,
        mockReasoning={"summary": "It may be about delivery or about the invoice."},
        mockDecision={"decision": {"topic": "delivery"}, "confidence": 0.58},
    )
    return workflow("complaint-routing", "Complaint routing", [classify, node("route", "Route it")])


def failing() -> JsonObject:
    """Return a workflow that fails."""
    broken = node("push", "Push to the ledger", "core.fail", config={"message": "ledger is closed"})
    return workflow("nightly-ledger", "Nightly ledger", [delay("sum", "Sum up", 90), broken])


def agents() -> list[JsonObject]:
    """Return the manifests of the demo's agents."""
    triage: JsonObject = {
        "agentId": TRIAGE,
        "version": "1.0.0",
        "persona": "Triage clerk",
        "label": "Triage",
        "description": "Reads a complaint, looks up the order and the policy, and decides.",
        "modelClass": "reasoning",
        "systemPrompt": "Decide on refunds by the policy. Say how sure you are.",
        "toolAllowlist": ["shop.orders:read", "shop.policy:find"],
        "confidence": {"defaultThreshold": 0.7},
        "memoryShape": {"scratchpad": True, "conversation": True},
    }
    writer: JsonObject = {
        "agentId": WRITER,
        "persona": "Letter writer",
        "label": "Writer",
        "description": "Writes the reply to the customer.",
        "modelClass": "writing",
        "systemPrompt": "Write short and kind letters.",
    }
    stricter: JsonObject = {"version": "1.1.0", "confidence": {"defaultThreshold": 0.8}}
    return [triage, triage | stricter, writer]


def greeting(version: str, ending: str) -> JsonObject:
    """Return a version of a workflow, for the comparison of runs of two versions."""
    config = {"name": "letter", "expression": f'"Dear " + variables.customer + "{ending}"'}
    variables: list[JsonObject] = [
        {"name": "customer", "type": "string", "description": "The customer.", "required": True},
        {
            "name": "copies",
            "type": "number",
            "description": "The number of copies.",
            "defaultValue": 1,
        },
    ]
    end = {"message": {"type": "variable", "variableName": "letter"}}
    nodes = [
        delay("look-up", "Look up the customer", 80 if version == "1.0" else 210),
        node("write", "Write the letter", "core.setVariable", config=config),
        node("answer", "Send it", "core.end", inputs=end, outputRole="primary"),
    ]
    about = "Writes to a customer whose order is late."
    return workflow(
        "late-order", "Late order", nodes, version=version, variables=variables, description=about
    )


def make_runs(http: httpx.Client) -> dict[str, str]:
    """Install agents and workflows, start runs, and return the pages for the screenshots."""
    for manifest in agents():
        http.post("/v1/agents", json=manifest).raise_for_status()
    for definition in (refund(), unsure(), failing()):
        http.post("/v1/workflows", json=definition).raise_for_status()
    reviews = make_reviews(http, WRITER)
    for name in ("Ada", "Grace", "Edith"):
        started(http, "hello", ["tour"], {"name": name})
    started(http, "nightly-ledger", ["nightly"])
    make_waits(http)
    started(http, "complaint-routing", ["inbox"])
    answered, shown = (_waiting_refund(http) for _ in range(2))
    accept = {"resumeValue": {"action": "accept"}}
    http.post(f"/v1/runs/{answered}/interrupts/approve", json=accept).raise_for_status()
    _annotate(http, answered, {"kind": "rating", "rating": 5})
    _annotate(http, shown, {"kind": "rating", "rating": 4})
    return {
        "run": f"/runs/{shown}",
        "inbox": "/inbox",
        "reviews": reviews,
        "compare": _compared(http),
        "workflow": "/workflows/refund-request",
        "agent": f"/agents/{TRIAGE}",
    }


def _compared(http: httpx.Client) -> str:
    """Execute runs of two versions and return the path of their comparison."""
    made: list[str] = []
    for version, ending in (("1.0", ", we are sorry."), ("1.1", ", your order is on its way.")):
        http.post("/v1/workflows", json=greeting(version, ending)).raise_for_status()
        made.append(started(http, "late-order", ["letters"], {"customer": "Ada"}))
        _ended(http, made[-1])
    return f"/compare?a={made[0]}&b={made[1]}"


def _ended(http: httpx.Client, run_id: str) -> None:
    while not http.get(f"/v1/runs/{run_id}/events/poll?timeout=5").json()["isComplete"]:
        pass


def _waiting_refund(http: httpx.Client) -> str:
    """Start a refund and wait until it asks for approval."""
    run_id, last = started(http, "refund-request", ["refund", "eu"]), -1
    while True:
        path = f"/v1/runs/{run_id}/events/poll"
        page = http.get(path, params={"lastSequence": last, "timeout": 5}).json()
        if any(event["type"] == "interrupt.requested" for event in page["events"]):
            return run_id
        last = page["lastEventSeq"]


def _annotate(http: httpx.Client, run_id: str, signal: JsonObject) -> None:
    log = http.get(f"/v1/runs/{run_id}/events", headers={"accept": "application/json"}).json()
    decided = next(e for e in log["events"] if e["type"] == "agent.decided")
    body = {"signal": signal, "target": {"eventId": decided["eventId"]}}
    http.post(f"/v1/runs/{run_id}/annotations", json=body).raise_for_status()
