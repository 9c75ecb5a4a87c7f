"""Demo feedback: ratings of many runs, a review queue, and the verdicts of a judge."""

from __future__ import annotations

import time
from itertools import cycle
from typing import Final

import httpx

from docs.demo_parts import node, started, workflow
from wopr.protocol.documents import Json, JsonObject

_WAIT_SECONDS: Final = 20.0
_RATINGS: Final = (4, 5, 3, 4, 5, 2, 4, 5)


def politeness() -> JsonObject:
    """Return the workflow of a judge that rates greetings."""
    message = "variables.run.outputs.message"
    inputs: JsonObject = {
        "rating": {"type": "expression", "expression": f'{message} == "Hello, Ada!" ? 5 : 4'},
        "note": {"type": "expression", "expression": f'"said: " + {message}'},
    }
    verdict = node("verdict", "Rate the greeting", "core.end", inputs=inputs, outputRole="primary")
    run = {"name": "run", "type": "object"}
    return workflow("politeness", "Is the greeting polite?", [verdict], variables=[run])


def make_reviews(http: httpx.Client, judge: str) -> str:
    """Annotate many runs, and return the path of the page with the summary."""
    stars = cycle(_RATINGS)
    greetings = [started(http, "hello", ["tour"], {"name": name}) for name in "ABCDEFGH"]
    for run_id in greetings:
        _until(http, f"/v1/runs/{run_id}", "status", "completed")
        _annotate(http, run_id, {"kind": "rating", "rating": next(stars)})
    _annotate(http, greetings[0], {"kind": "correction", "correction": "Good morning, A!"})
    ledger = started(http, "nightly-ledger", ["nightly"])
    _annotate(http, ledger, {"kind": "rating", "rating": 1})
    _annotate(http, ledger, {"kind": "flag"})
    _queue(http)
    _judge(http, judge)
    return "/reviews?window=1d"


def _annotate(http: httpx.Client, run_id: str, signal: JsonObject) -> None:
    http.post(f"/v1/runs/{run_id}/annotations", json={"signal": signal}).raise_for_status()


def _queue(http: httpx.Client) -> None:
    rubric = [
        {"kind": "rating", "question": "Is the greeting friendly?"},
        {"kind": "label", "question": "What is the tone?", "labels": ["warm", "plain", "cold"]},
        {"kind": "correction", "question": "What would be better?", "required": False},
        {"kind": "flag", "question": "This must not go out", "required": False},
    ]
    body = {"name": "Greetings of the week", "rubric": rubric, "filter": {"workflowId": "hello"}}
    queue = _made(http, "/v1/queues", body)["queueId"]
    done: list[JsonObject] = [
        {"signal": {"kind": "rating", "rating": 4}},
        {"signal": {"kind": "label", "label": "warm"}},
    ]
    for _ in range(3):
        item = _made(http, f"/v1/queues/{queue}/items:next", None)["runId"]
        _made(http, f"/v1/queues/{queue}/items/{item}:done", {"annotations": done})


def _judge(http: httpx.Client, agent_id: str) -> None:
    http.post("/v1/workflows", json=politeness()).raise_for_status()
    request = {"workflowId": "politeness", "agentId": agent_id, "filter": {"workflowId": "hello"}}
    judge = _made(http, "/v1/judges", request)["judgeId"]
    _until(http, f"/v1/judges/{judge}", "state", "done")


def _until(http: httpx.Client, path: str, member: str, value: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while http.get(path).json()[member] != value:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} is not {value}")
        time.sleep(0.05)


def _made(http: httpx.Client, path: str, body: Json) -> JsonObject:
    made: JsonObject = http.post(path, json=body).raise_for_status().json()
    return made
