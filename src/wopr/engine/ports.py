"""Input ports: where a node's inputs come from, and the values they have when it starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import cast

from wopr.engine.expressions import (
    ExpressionFault,
    ExpressionUse,
    evaluate,
    lookup,
    use_fault,
)
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, is_object
from wopr.protocol.names import not_there, shown
from wopr.protocol.workflow import (
    ConnectionPort,
    ExpressionPort,
    PortValue,
    StaticPort,
    VariablePort,
)


class PortFault(ValueError):
    """A port that has no value; `port` names it."""

    def __init__(self, port: str, message: str) -> None:
        super().__init__(f"input {port!r} {message}")
        self.port = port


def resolve(ports: Mapping[str, PortValue], scope: Mapping[str, Json]) -> JsonObject:
    """Give a node its inputs.

    An optional source that is absent leaves its key out, never `null`. Raises `PortFault` for an
    absent source that is not optional and for an expression without a value.
    """
    resolved = {name: _value(name, port, scope) for name, port in ports.items()}
    return {name: value for name, value in resolved.items() if not isinstance(value, Unset)}


def port_faults(
    ports: Mapping[str, PortValue],
    *,
    node_ids: Collection[str],
    variable_names: Collection[str],
) -> list[tuple[str, str]]:
    """Say what keeps ports from being registered, each fault with its port's name.

    A variable that is not declared is no fault: a run's inputs may carry other names.
    """
    return [(name, fault) for name, port in ports.items() for fault in _faults(port, node_ids)]


def _faults(port: PortValue, node_ids: Collection[str]) -> Iterator[str]:
    if isinstance(port, ConnectionPort) and port.node_id not in node_ids:
        yield f"connects to node {port.node_id!r}, which the workflow does not have"
    if isinstance(port, ExpressionPort):
        fault = use_fault(ExpressionUse(path="", source=port.expression), node_ids)
        if fault is not None:
            yield fault


def _value(name: str, port: PortValue, scope: Mapping[str, Json]) -> Json:
    match port:
        case StaticPort():
            return port.value
        case ExpressionPort():
            return _expression(name, port, scope)
        case ConnectionPort():
            outputs = _named(scope.get("nodes"), port.node_id)
            found = _named(outputs, port.output_key)
            if isinstance(found, Unset) and not port.optional:
                missing = f"needs output {shown(port.output_key)!r} of node {port.node_id!r}, "
                raise PortFault(name, missing + _without(outputs, port.output_key))
            return found
        case VariablePort():
            found = _named(scope.get("variables"), port.variable_name)
            if isinstance(found, Unset) and not port.optional:
                missing = f"needs variable {shown(port.variable_name)!r}, which is not set"
                raise PortFault(name, missing)
            return found


def _without(outputs: Json, key: str) -> str:
    """Say why an output is not there: the node has none, or has others."""
    if not is_object(outputs) or not outputs:
        return "which has no outputs"
    message = f"which it does not have: {not_there(key, outputs)}"
    if "childRunId" in outputs:
        message += (
            "; values of a child run are not outputs of the node: map them to variables with "
            "outputMapping"
        )
    return message


def _expression(name: str, port: ExpressionPort, scope: Mapping[str, Json]) -> Json:
    try:
        return evaluate(port.expression, scope)
    except ExpressionFault as fault:
        raise PortFault(name, f"has no value: {fault}") from fault


def _named(holder: Json, name: str) -> Json:
    """Find a key, first by its whole name and then as a dotted path."""
    if not isinstance(holder, Mapping):
        return UNSET
    entries = cast("Mapping[str, Json]", holder)
    return entries[name] if name in entries else lookup(entries, name)
