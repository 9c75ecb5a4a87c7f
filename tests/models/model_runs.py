"""Runs of one node that calls a scripted model, and readers of their logs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.models.model_server import ModelServer
from tests.models.turns import Turn
from tests.support.client import Wire
from tests.support.definitions import node, workflow
from wopr.protocol.documents import Json, JsonObject

NODE = "ask"
OUTCOMES = ("run.completed", "run.failed", "node.suspended")
CITY: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def model_node(
    kind: str,
    model: str,
    config: JsonObject | None = None,
    provider: str = "local",
    **fields: Json,
) -> JsonObject:
    """Return a node that calls a model of a scripted server."""
    own = {"model": f"{provider}:{model}", "prompt": "Do your task."} | (config or {})
    return node(fields.pop("id", NODE), f"openwop.llm.{kind}", config=own, **fields)


def started(wire: Wire, nodes: Sequence[JsonObject], **body: Json) -> str:
    """Register a workflow of these nodes, start a run of it and return the run's id."""
    definition = workflow(nodes, **body.pop("definition", {}))
    wire.register(definition)
    return wire.create(definition["id"], **body)


def run_node(
    wire: Wire,
    server: ModelServer,
    turns: Sequence[Turn],
    kind: str = "chat",
    config: JsonObject | None = None,
    **fields: Json,
) -> tuple[str, list[JsonObject]]:
    """Run one node with these turns until it ends or waits; return the model's name and the log."""
    model = server.script(turns)
    run_id = started(wire, [model_node(kind, model, config, server.provider, **fields)])
    return model, wire.events_until(run_id, *OUTCOMES)


def payloads(log: Sequence[JsonObject], event_type: str) -> list[JsonObject]:
    return [event["payload"] for event in log if event["type"] == event_type]


def only_payload(log: Sequence[JsonObject], event_type: str) -> JsonObject:
    """Return the one payload of that type."""
    [found] = payloads(log, event_type)
    return found


def types(log: Sequence[JsonObject]) -> list[str]:
    """Return the types of a log's events, without log lines."""
    return [event["type"] for event in log if event["type"] != "log.appended"]


def error_of(log: Sequence[JsonObject]) -> str:
    found: str = only_payload(log, "run.failed")["error"]["code"]
    return found


def outputs_of(log: Sequence[JsonObject]) -> JsonObject:
    found: JsonObject = only_payload(log, "node.completed")["outputs"]
    return found
