"""Calls a node: its arguments, its own time limit, and what its exceptions mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import anyio
import msgspec
import structlog

from wopr.engine.limits import node_deadline
from wopr.engine.outcome import Failed, NodeFailure, Outcome
from wopr.engine.ports import PortFault, resolve
from wopr.engine.state import RunState
from wopr.engine.triggers import scope
from wopr.nodes.registry import NodeType, as_outcome
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import HoldLost, Unavailable, WoprError
from wopr.protocol.offloading import WorkNeeded
from wopr.protocol.runs import RunError
from wopr.runtime.active import ActiveRun
from wopr.runtime.agent_call import AgentCall
from wopr.runtime.handoff_schemas import check_task
from wopr.runtime.steps import NODE_TIMEOUT

log = structlog.get_logger("wopr.nodes")


def call_now(run: ActiveRun, call: AgentCall, node_type: NodeType) -> Outcome:
    """Call a node that does not wait."""
    expired = out_of_time(call.state, call.node_id, call.now)
    if expired is not None:
        return expired
    try:
        return as_outcome(node_type.execute(call, *_arguments(run, call, node_type)))
    except WorkNeeded:
        raise
    except Exception as error:  # the outer edge of a node's own code
        return _failed(call, *_causes(error))


async def call_and_wait(run: ActiveRun, call: AgentCall, node_type: NodeType, now: int) -> Outcome:
    """Call a node that may wait, within what is left of its time.

    Raises `Unavailable` when the store was away, and `HoldLost` when another process has the run:
    those are no failures of the node.
    """
    expired = out_of_time(call.state, call.node_id, now)
    if expired is not None:
        return expired
    deadline = node_deadline(call.state, call.node_id)
    with anyio.move_on_after(None if deadline is None else (deadline - now) / 1000):
        try:
            arguments = await call.offloading(lambda: _arguments(run, call, node_type))
            return await node_type.call(call, *arguments)
        except Exception as error:  # the outer edge of a node's own code
            causes = list(_causes(error))
            for cause in causes:
                if isinstance(cause, Unavailable | HoldLost):
                    raise cause from None
            return _failed(call, *causes)
    return _timed_out(call.state, call.node_id)


def keys_of(run: ActiveRun, call: AgentCall, node_type: NodeType) -> frozenset[str] | None:
    """What a node would ask a model first; none at all when it could no longer ask anything.

    None when it asks no model, or cannot tell here.
    """
    if node_type.asked_keys is None:
        return None
    try:
        return node_type.asked_keys(call, *_arguments(run, call, node_type))
    except (NodeFailure, PortFault, msgspec.ValidationError):
        return frozenset()


def out_of_time(state: RunState, node_id: str, now: int) -> Failed | None:
    """The failure of a node that has run out of its own time."""
    deadline = node_deadline(state, node_id)
    return None if deadline is None or now < deadline else _timed_out(state, node_id)


def _timed_out(state: RunState, node_id: str) -> Failed:
    limit = state.graph.nodes[node_id].settings.timeout
    message = f"{node_id} took longer than its limit of {limit} ms"
    return Failed(RunError(code=NODE_TIMEOUT, message=message))


def _arguments(run: ActiveRun, call: AgentCall, node_type: NodeType) -> tuple[Json, Json]:
    graph = run.compiled.graph
    ports = graph.nodes[call.node_id].inputs
    inputs: JsonObject = {}
    if ports or graph.incoming[call.node_id]:
        known = scope(call.state)
        inputs = _carried_values(run, call.node_id, known) | resolve(ports, known)
    check_task(call, inputs)
    return run.compiled.configs[call.node_id], node_type.decode_inputs(inputs)


def _carried_values(run: ActiveRun, node_id: str, known: dict[str, Json]) -> JsonObject:
    """Values that edges bring along: those that name the input they lead to."""
    values: JsonObject = {}
    for edge in run.compiled.graph.incoming[node_id]:
        if isinstance(edge.target_input, Unset):
            continue
        outputs = known["nodes"].get(edge.source_node_id, {})
        if isinstance(edge.source_output, Unset):
            values[edge.target_input] = outputs.get("output", outputs)
        elif edge.source_output in outputs:
            values[edge.target_input] = outputs[edge.source_output]
    return values


def _causes(error: Exception) -> Iterator[Exception]:
    """The exceptions of a task group, in order, without the groups around them."""
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for each in cast("ExceptionGroup[Exception]", error).exceptions:
        yield from _causes(each)


def _failed(call: AgentCall, *causes: Exception) -> Failed:
    """The failure of a node: that of its first cause, with all of several in `details.errors`."""
    errors = [_error(call, cause) for cause in causes]
    if len(errors) == 1:
        return Failed(errors[0])
    details = {} if isinstance(errors[0].details, Unset) else errors[0].details
    named = [{"code": error.code, "message": error.message} for error in errors]
    return Failed(msgspec.structs.replace(errors[0], details=details | {"errors": named}))


def _error(call: AgentCall, cause: Exception) -> RunError:
    match cause:
        case NodeFailure():
            return cause.error
        case PortFault() | msgspec.ValidationError():
            place = "" if isinstance(cause, PortFault) else "inputs: "
            message = f"node {call.node_id!r}: {place}{cause}"
            return RunError(code="validation_error", message=message, retryable=False)
        case WoprError():
            return RunError(code=cause.code, message=cause.message)
        case _:
            log.warning("node raised", run_id=call.run_id, node_id=call.node_id, exc_info=cause)
            return RunError(code="node_error", message=f"{type(cause).__name__}: {cause}")
