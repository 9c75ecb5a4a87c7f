"""Exports of traces to a host, and the resulting fleet lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from time import time_ns

import httpx

from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.kahn import stored_lines
from tests.support.otlp_spans import export, otlp_span
from wopr.protocol.documents import Json, JsonObject

PATH = "/v1/fleet/otlp/v1/traces"
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
# A host with short delays.
QUICK = {"WOPR_OTLP_SETTLE_SECONDS": "0.05", "WOPR_OTLP_QUIET_SECONDS": "0.5"}
PATIENT = {"WOPR_OTLP_SETTLE_SECONDS": "0.05", "WOPR_OTLP_QUIET_SECONDS": "600"}
SECOND = 1_000_000_000


class Request:
    """The spans of one request in which an agent calls a tool and answers."""

    def __init__(self, agent: str = "shop-agent") -> None:
        self.trace_id = token_hex(16)
        self.run_id = f"otel-{self.trace_id}"
        self.agent = agent
        self._start = time_ns() - 60 * SECOND
        self.root = self.span(1, 0, 0, 20, {"http.route": "/ask"})
        self.invocation = self.span(2, 1, 0, 19, {"gen_ai.operation.name": "invoke_agent"})
        asked = {"gen_ai.operation.name": "chat", "gen_ai.response.model": "m-1"}
        used = {"gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 4}
        wants = {"gen_ai.response.finish_reasons": ["tool_calls"]}
        self.wish = self.span(3, 2, 1, 2, asked | used | wants)
        called = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
        self.call = self.span(4, 2, 2, 4, called)
        self.answer = self.span(5, 2, 4, 6, asked | used)

    def span(
        self, number: int, parent: int, start: int, end: int, attributes: JsonObject
    ) -> JsonObject:
        return otlp_span(
            number,
            parent,
            {"gen_ai.agent.name": self.agent} | attributes,
            trace_id=self.trace_id,
            startTimeUnixNano=str(self._start + start * SECOND),
            endTimeUnixNano=str(self._start + end * SECOND),
        )

    def all_spans(self) -> list[JsonObject]:
        """Return all spans, the children first, in the order of their ends."""
        return [self.wish, self.call, self.answer, self.invocation, self.root]


def send(wire: Wire, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return wire.request("POST", PATH, content=body, headers=headers)


def send_json(wire: Wire, *spans: JsonObject) -> httpx.Response:
    return send(wire, json.dumps(export(*spans)).encode(), JSON)


def fleet_lines(wire: Wire, run_id: str) -> list[JsonObject]:
    """Return the lines of a run, once the fleet has it."""
    eventually(partial(_has, wire, run_id))
    return [json.loads(line) for line in stored_lines(wire, run_id)]


def _has(wire: Wire, run_id: str) -> bool:
    return bool(stored_lines(wire, run_id))


def of(lines: list[JsonObject], event: str) -> list[JsonObject]:
    return [line for line in lines if line["event"] == event]


def find(lines: list[JsonObject], is_it: Callable[[JsonObject], Json]) -> JsonObject:
    [found] = [line for line in lines if is_it(line)]
    return found
