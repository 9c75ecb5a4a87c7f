"""The workflows of the benchmark."""

from __future__ import annotations

from typing import Any

CHAIN_NODES = 25


def _definition(name: str, nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> Any:
    return {
        "id": name,
        "name": name,
        "version": "1.0",
        "nodes": nodes,
        "edges": edges,
        "triggers": [{"id": "manual", "type": "manual", "enabled": True}],
        "variables": [],
        "metadata": {},
        "settings": {},
    }


def _node(name: str, type_id: str, **config: Any) -> dict[str, Any]:
    return {
        "id": name,
        "typeId": type_id,
        "name": name,
        "position": {"x": 0, "y": 0},
        "config": config,
        "inputs": {},
    }


def _edge(number: int) -> dict[str, Any]:
    ends = {"sourceNodeId": f"step-{number}", "targetNodeId": f"step-{number + 1}"}
    return {"id": f"edge-{number}", **ends}


NOOP = _definition("bench-noop", [_node("noop", "core.noop")], [])
CHAIN = _definition(
    "bench-chain",
    [_node(f"step-{number}", "core.noop") for number in range(CHAIN_NODES)],
    [_edge(number) for number in range(CHAIN_NODES - 1)],
)
# A resume starts the minute of the node again, so the run outlives the measurement.
WAIT = _definition("bench-wait", [_node("wait", "core.delay", delayMs=60_000)], [])
_SLEEP = {
    **_node("sleep", "core.delay"),
    "inputs": {"delayMs": {"type": "variable", "variableName": "delayMs"}},
}
TIMER = _definition("bench-timer", [_SLEEP], []) | {
    "variables": [{"name": "delayMs", "type": "number", "required": True}]
}
GATE = _definition("bench-gate", [_node("gate", "core.approvalGate", title="Go on?")], [])

# Only a host with `--conformance` has agents with scripted behaviour.
TOOL_CALLS = 50
_TOOL = {"toolId": "openwop:echo", "arguments": {"x": 1}, "result": {"x": 1}, "durationMs": 1}


def agent(name: str, tool_calls: int) -> Any:
    """Return a workflow with one agent that calls a tool `tool_calls` times."""
    node = _node(
        "agent",
        "core.conformance.mock-agent",
        mockReasoning={"summary": "Look at every part of the question in turn."},
        mockToolCalls=[_TOOL] * tool_calls,
        mockDecision={"decision": {"next": "done"}, "confidence": 1},
    )
    return _definition(name, [node], [])


def steps(name: str, count: int, wait_ms: int = 0) -> Any:
    """Return a workflow of many steps in sequence. The first waits until readers are connected.

    Every fifth step writes to a channel, which adds an event to the two of a step. With `wait_ms`
    every tenth step waits that long.
    """
    nodes = [_node("step-0", "core.delay", delayMs=3000)]
    nodes += [_step(number, wait_ms) for number in range(1, count)]
    return _definition(name, nodes, [_edge(number) for number in range(count - 1)])


def _step(number: int, wait_ms: int) -> dict[str, Any]:
    if wait_ms and number % 10 == 1:
        return _node(f"step-{number}", "core.delay", delayMs=wait_ms)
    if number % 5:
        return _node(f"step-{number}", "core.noop")
    return _node(f"step-{number}", "core.channelWrite", channelName="last", value=number)


AGENT = agent("conformance-bench-agent", TOOL_CALLS)

WORKFLOWS: tuple[Any, ...] = (NOOP, CHAIN, WAIT, GATE, TIMER)
