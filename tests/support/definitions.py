"""Builders of workflow definitions with defaults for what a test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from uuid import uuid4

from wopr.protocol.documents import Json, JsonObject


def fresh(stem: str = "wf") -> str:
    """Return a name that no other test uses."""
    return f"{stem}-{uuid4().hex[:12]}"


def node(node_id: str, type_id: str = "core.noop", **fields: Json) -> JsonObject:
    return {
        "id": node_id,
        "typeId": type_id,
        "name": node_id,
        "position": {"x": 0, "y": 0},
        "config": {},
        "inputs": {},
    } | fields


def delay(node_id: str, milliseconds: int) -> JsonObject:
    return node(node_id, "core.delay", config={"ms": milliseconds})


def edge(source: str, target: str, **fields: Json) -> JsonObject:
    ends = {"sourceNodeId": source, "targetNodeId": target}
    return {"id": f"{source}-{target}", **ends} | fields


def variable(name: str, kind: str = "string", **fields: Json) -> JsonObject:
    return {"name": name, "type": kind} | fields


def from_variable(name: str) -> JsonObject:
    """Return an input port that reads a variable."""
    return {"type": "variable", "variableName": name}


def workflow(nodes: Sequence[JsonObject], **fields: Json) -> JsonObject:
    """Return a definition whose nodes run one after the other, unless `edges` is given."""
    ids = [each["id"] for each in nodes]
    return {
        "id": fresh(),
        "name": "A test workflow",
        "version": "1.0",
        "nodes": list(nodes),
        "edges": [edge(one, next_one) for one, next_one in pairwise(ids)],
        "triggers": [],
        "variables": [],
        "metadata": {},
        "settings": {},
    } | fields
