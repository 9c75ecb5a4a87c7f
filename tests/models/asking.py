"""Runs of one node that asks a scripted model, and what is read from their logs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.models.model_server import ModelServer
from tests.models.turns import Turn
from tests.wire.client import Wire
from tests.wire.definitions import node, workflow
from wopr.protocol.documents import Json, JsonObject

NODE = "ask"
OUTCOMES = ("run.completed", "run.failed", "node.suspended")
CITY: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def asks(
    kind: str,
    model: str,
    config: JsonObject | None = None,
    provider: str = "local",
    **fields: Json,
) -> JsonObject:
    """A node that asks a model of a scripted server."""
    own = {"model": f"{provider}:{model}", "prompt": "Do your task."} | (config or {})
    return node(fields.pop("id", NODE), f"openwop.llm.{kind}", config=own, **fields)


def started(wire: Wire, nodes: Sequence[JsonObject], **body: Json) -> str:
    """Register a workflow of these nodes, start a run of it and return the run's id."""
    definition = workflow(nodes, **body.pop("definition", {}))
    wire.register(definition)
    return wire.create(definition["id"], **body)


def ran(
    wire: Wire,
    server: ModelServer,
    turns: Sequence[Turn],
    kind: str = "chat",
    config: JsonObject | None = None,
    **fields: Json,
) -> tuple[str, list[JsonObject]]:
    """Run one node against these turns until it is over or waits: the model's name and the log."""
    model = server.script(turns)
    run_id = started(wire, [asks(kind, model, config, server.provider, **fields)])
    return model, wire.events_until(run_id, *OUTCOMES)


def payloads(log: Sequence[JsonObject], event_type: str) -> list[JsonObject]:
    return [event["payload"] for event in log if event["type"] == event_type]


def only(log: Sequence[JsonObject], event_type: str) -> JsonObject:
    """The one payload of that type."""
    [found] = payloads(log, event_type)
    return found


def types(log: Sequence[JsonObject]) -> list[str]:
    """The types of a log's events, without the lines that only explain."""
    return [event["type"] for event in log if event["type"] != "log.appended"]


def error_of(log: Sequence[JsonObject]) -> str:
    found: str = only(log, "run.failed")["error"]["code"]
    return found


def outputs_of(log: Sequence[JsonObject]) -> JsonObject:
    found: JsonObject = only(log, "node.completed")["outputs"]
    return found
