"""Builders of the demo's workflows."""

from __future__ import annotations

from itertools import pairwise

import httpx

from wopr.protocol.documents import Json, JsonObject


def node(node_id: str, name: str, type_id: str = "core.noop", **fields: Json) -> JsonObject:
    """Return a node."""
    base = {"position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}
    return {"id": node_id, "typeId": type_id, "name": name, **base} | fields


def delay(node_id: str, name: str, milliseconds: int) -> JsonObject:
    """Return a node that waits."""
    return node(node_id, name, "core.delay", config={"ms": milliseconds})


def agent(node_id: str, name: str, agent_id: str, **script: Json) -> JsonObject:
    """Return a node with a scripted agent."""
    agent = {"agentId": agent_id, "modelClass": "reasoning"}
    return node(node_id, name, "core.conformance.mock-agent", config=script, agent=agent)


def edge(source: str, target: str) -> JsonObject:
    """Return an edge."""
    return {"id": f"{source}-{target}", "sourceNodeId": source, "targetNodeId": target}


def workflow(workflow_id: str, name: str, nodes: list[JsonObject], **fields: Json) -> JsonObject:
    """Return a definition whose nodes run in sequence, unless `edges` is given."""
    edges = [edge(one["id"], next_one["id"]) for one, next_one in pairwise(nodes)]
    empty: JsonObject = {"triggers": [], "variables": [], "metadata": {}, "settings": {}}
    base = {"id": workflow_id, "name": name, "version": "3.1", "nodes": nodes, "edges": edges}
    return base | empty | fields


def started(
    http: httpx.Client, name: str, tags: list[str], inputs: JsonObject | None = None
) -> str:
    """Start a run and return its id."""
    request = {"workflowId": name, "tags": tags, "inputs": inputs or {}}
    response = http.post("/v1/runs", json=request).raise_for_status()
    return str(response.json()["runId"])
