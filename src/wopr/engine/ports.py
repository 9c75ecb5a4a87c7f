"""Input ports: the sources of a node's inputs, and their values when the node starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import cast

from wopr.engine.cel.expressions import (
    ExpressionFault,
    ExpressionUse,
    evaluate,
    use_fault,
    value_at_path,
)
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, is_object
from wopr.protocol.suggestions import shorten_name, suggest_name
from wopr.protocol.workflow import (
    ConnectionPort,
    ExpressionPort,
    PortValue,
    StaticPort,
    VariablePort,
)


class PortFault(ValueError):
    """A port without a value. `port` is its name."""

    def __init__(self, port: str, message: str) -> None:
        super().__init__(f"input {port!r} {message}")
        self.port = port


def resolve_inputs(ports: Mapping[str, PortValue], scope: Mapping[str, Json]) -> JsonObject:
    """Return the inputs of a node.

    An input whose optional source is absent is omitted. Raises `PortFault` for an absent source
    that is not optional and for an expression without a value.
    """
    resolved = {name: _value(name, port, scope) for name, port in ports.items()}
    return {name: value for name, value in resolved.items() if not isinstance(value, Unset)}


def port_faults(
    ports: Mapping[str, PortValue],
    *,
    node_ids: Collection[str],
) -> list[tuple[str, str]]:
    """Return what is wrong with the ports of a definition, each fault with the port's name.

    An undeclared variable is allowed, because the inputs of a run may have other names.
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
            return _expression_value(name, port, scope)
        case ConnectionPort():
            outputs = _look_up(scope.get("nodes"), port.node_id)
            found = _look_up(outputs, port.output_key)
            if isinstance(found, Unset) and not port.optional:
                missing = (
                    f"needs output {shorten_name(port.output_key)!r} of node {port.node_id!r}, "
                )
                raise PortFault(name, missing + _missing_output_reason(outputs, port.output_key))
            return found
        case VariablePort():
            found = _look_up(scope.get("variables"), port.variable_name)
            if isinstance(found, Unset) and not port.optional:
                missing = f"needs variable {shorten_name(port.variable_name)!r}, which is not set"
                raise PortFault(name, missing)
            return found


def _missing_output_reason(outputs: Json, key: str) -> str:
    """Return why an output does not exist: the node has no outputs, or has others."""
    if not is_object(outputs) or not outputs:
        return "which has no outputs"
    message = f"which it does not have: {suggest_name(key, outputs)}"
    if "childRunId" in outputs:
        message += (
            "; values of a child run are not outputs of the node: map them to variables with "
            "outputMapping"
        )
    return message


def _expression_value(name: str, port: ExpressionPort, scope: Mapping[str, Json]) -> Json:
    try:
        return evaluate(port.expression, scope)
    except ExpressionFault as fault:
        raise PortFault(name, f"has no value: {fault}") from fault


def _look_up(container: Json, name: str) -> Json:
    """Return the value of a key, or of a dotted path if there is no such key."""
    if not isinstance(container, Mapping):
        return UNSET
    entries = cast("Mapping[str, Json]", container)
    return entries[name] if name in entries else value_at_path(entries, name)
