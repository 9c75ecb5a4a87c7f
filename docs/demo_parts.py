"""Builders of the demo's workflows."""

from __future__ import annotations

from itertools import pairwise

import httpx

from wopr.protocol.documents import Json, JsonObject


def node(node_id: str, name: str, type_id: str = "core.noop", **fields: Json) -> JsonObject:
    """A node."""
    base = {"position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}
    return {"id": node_id, "typeId": type_id, "name": name, **base} | fields


def delay(node_id: str, name: str, milliseconds: int) -> JsonObject:
    """A node that takes its time."""
    return node(node_id, name, "core.delay", config={"ms": milliseconds})


def agent(node_id: str, name: str, agent_id: str, **script: Json) -> JsonObject:
    """A node whose agent follows a script."""
    agent = {"agentId": agent_id, "modelClass": "reasoning"}
    return node(node_id, name, "core.conformance.mock-agent", config=script, agent=agent)


def edge(source: str, target: str) -> JsonObject:
    """An edge."""
    return {"id": f"{source}-{target}", "sourceNodeId": source, "targetNodeId": target}


def workflow(workflow_id: str, name: str, nodes: list[JsonObject], **fields: Json) -> JsonObject:
    """A definition whose nodes follow one another, unless `edges` says otherwise."""
    edges = [edge(one["id"], next_one["id"]) for one, next_one in pairwise(nodes)]
    empty: JsonObject = {"triggers": [], "variables": [], "metadata": {}, "settings": {}}
    base = {"id": workflow_id, "name": name, "version": "3.1", "nodes": nodes, "edges": edges}
    return base | empty | fields


def started(
    http: httpx.Client, name: str, tags: list[str], inputs: JsonObject | None = None
) -> str:
    """Start a run and return its id."""
    request = {"workflowId": name, "tags": tags, "inputs": inputs or {}}
    answer = http.post("/v1/runs", json=request).raise_for_status()
    return str(answer.json()["runId"])
