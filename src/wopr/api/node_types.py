"""Node types for workflows in Python: found by id or by function, with their inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Protocol, TypeAlias, get_type_hints

from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError
from wopr.api.schemas import ANY_SCHEMA, schema_for
from wopr.api.tools import HINT
from wopr.engine.outcome import (
    Breached,
    Completed,
    Failed,
    Sleeping,
    Suspended,
    Waiting,
)
from wopr.nodes.builtin import builtin_registry
from wopr.nodes.registry import NodeRegistry, NodeType
from wopr.protocol.documents import JsonObject
from wopr.protocol.suggestions import nearest

AGENT: Final = "openwop.llm.agent"
APPROVAL: Final = "core.approvalGate"
CLARIFICATION: Final = "core.clarificationGate"
SUB_WORKFLOW: Final = "core.subWorkflow"
SET_VARIABLE: Final = "core.setVariable"
END: Final = "core.end"

_TEXT: Final[JsonObject] = {"type": "string"}
# Outputs of node types whose functions return an outcome instead of typed outputs.
_OUTPUTS: Final[dict[str, JsonObject]] = {
    APPROVAL: {"properties": {"action": _TEXT, "approved": {"type": "boolean"}, "artifact": {}}},
    CLARIFICATION: {"properties": {"answers": {"type": "object"}}},
    SUB_WORKFLOW: {"properties": {"childRunId": _TEXT, "childStatus": _TEXT}},
}
_OUTCOMES: Final = (Completed, Failed, Sleeping, Waiting, Suspended, Breached)


class AgentNode(Protocol):
    """A node type with its own agent, such as a wrapped graph of another framework."""

    @property
    def __wopr_agent__(self) -> Agent: ...

    @property
    def __wopr_node__(self) -> NodeType: ...


NodeKind: TypeAlias = "str | Callable[..., Any] | NodeType | AgentNode"


def agent_in(what: NodeKind) -> Agent | None:
    """Return the agent that nodes of this type act for, or None."""
    return getattr(what, "__wopr_agent__", None)


@cache
def known_types() -> NodeRegistry:
    """Return the node types of every host, and those of installed packages."""
    return builtin_registry()


def node_type_of(what: NodeKind, where: str = "node type") -> NodeType:
    """Return a node type by its id, or the node type of a function declared with `@node`."""
    if isinstance(what, NodeType):
        return what
    if isinstance(what, str):
        found = known_types().get(what)
        if found is None:
            near = nearest(what, (each.type_id for each in known_types()))
            hint = "" if near is None else f"did you mean {near!r}? "
            hint += "for your own node type, pass the function declared with @node"
            raise WorkflowError(where, [f"there is no node type {what!r}: {hint}"])
        return found
    declared = getattr(what, "__wopr_node__", None)
    if not isinstance(declared, NodeType):
        raise WorkflowError(where, [_no_node_type(what)])
    return declared


def _no_node_type(what: object) -> str:
    """Return why something is not a node type. Agents, tools and workflows have a hint."""
    name = getattr(what, "__name__", repr(what))
    return f"{name} is {getattr(what, HINT, 'not declared with @node')}"


def inputs_schema(node_type: NodeType) -> JsonObject:
    """Return the schema of the inputs."""
    return _schema(node_type.inputs_type)


def outputs_schema(node_type: NodeType) -> JsonObject:
    """Return the schema of the outputs, if the function declares it."""
    if node_type.type_id in _OUTPUTS:
        return _OUTPUTS[node_type.type_id]
    try:
        returned = get_type_hints(node_type.execute).get("return", dict)
    except (NameError, TypeError):
        return ANY_SCHEMA
    return ANY_SCHEMA if returned in _OUTCOMES else _schema(returned)


def _schema(kind: Any) -> JsonObject:
    try:
        return schema_for(kind)
    except TypeError:
        # An outcome, or a type without a JSON Schema.
        return ANY_SCHEMA


def agent_outputs(output: type[Any] | None) -> JsonObject:
    """Return the schema of the outputs of an agent's node."""
    answer = {"text": _TEXT, "result": _TEXT} if output is None else {"result": schema_for(output)}
    metadata: JsonObject = {
        "model": _TEXT,
        "confidence": {"type": "number"},
        "reasoning": _TEXT,
        "handoff": {"type": "object"},
    }
    return {"properties": answer | metadata}
