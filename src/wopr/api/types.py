"""Node types as a builder knows them: by id, by function, and what each gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, get_type_hints

from wopr.api.errors import WorkflowError
from wopr.api.shapes import ANYTHING, shape_of
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
from wopr.protocol.names import nearest

if TYPE_CHECKING:
    from wopr.api.agent import Agent

AGENT: Final = "openwop.llm.agent"
APPROVAL: Final = "core.approvalGate"
CLARIFICATION: Final = "core.clarificationGate"
SUB_WORKFLOW: Final = "core.subWorkflow"
SET_VARIABLE: Final = "core.setVariable"
END: Final = "core.end"

# The attribute by which something that is no node type says what it is, and where it belongs.
BELONGS: Final = "__wopr_belongs__"

_TEXT: Final[JsonObject] = {"type": "string"}
# What types give whose functions return an outcome and so cannot say it with a type.
_OUTPUTS: Final[dict[str, JsonObject]] = {
    APPROVAL: {"properties": {"action": _TEXT, "approved": {"type": "boolean"}, "artifact": {}}},
    CLARIFICATION: {"properties": {"answers": {"type": "object"}}},
    SUB_WORKFLOW: {"properties": {"childRunId": _TEXT, "childStatus": _TEXT}},
}
_OUTCOMES: Final = (Completed, Failed, Sleeping, Waiting, Suspended, Breached)


class AgentNode(Protocol):
    """A node type that acts as one agent, such as a wrapped graph of another framework."""

    @property
    def __wopr_agent__(self) -> Agent: ...

    @property
    def __wopr_node__(self) -> NodeType: ...


NodeKind: TypeAlias = "str | Callable[..., Any] | NodeType | AgentNode"


def agent_in(what: NodeKind) -> Agent | None:
    """The agent that nodes of this kind act for, or None."""
    return getattr(what, "__wopr_agent__", None)


@cache
def known_types() -> NodeRegistry:
    """The node types of every host, and those of installed packages."""
    return builtin_registry()


def node_type_of(what: NodeKind, where: str = "node type") -> NodeType:
    """A node type by its id, or the one that a function was declared as with `@node`."""
    if isinstance(what, NodeType):
        return what
    if isinstance(what, str):
        found = known_types().get(what)
        if found is None:
            near = nearest(what, (each.type_id for each in known_types()))
            hint = "" if near is None else f"did you mean {near!r}? "
            hint += "for a type of your own, pass the function that is declared with @node"
            raise WorkflowError(where, [f"there is no node type {what!r}: {hint}"])
        return found
    declared = getattr(what, "__wopr_node__", None)
    if not isinstance(declared, NodeType):
        raise WorkflowError(where, [_no_node_type(what)])
    return declared


def _no_node_type(what: object) -> str:
    """Why something is no node type; agents, tools and workflows say where they belong."""
    name = getattr(what, "__name__", repr(what))
    return f"{name} is {getattr(what, BELONGS, 'not declared with @node')}"


def inputs_shape(node_type: NodeType) -> JsonObject:
    """What a node of this type takes."""
    return _shape(node_type.inputs_type)


def outputs_shape(node_type: NodeType) -> JsonObject:
    """What a node of this type gives, where its function says so."""
    if node_type.type_id in _OUTPUTS:
        return _OUTPUTS[node_type.type_id]
    try:
        returned = get_type_hints(node_type.execute).get("return", dict)
    except (NameError, TypeError):
        return ANYTHING
    return ANYTHING if returned in _OUTCOMES else _shape(returned)


def _shape(kind: Any) -> JsonObject:
    try:
        return shape_of(kind)
    except TypeError:
        # An outcome, or a type that cannot be told.
        return ANYTHING


def agent_outputs(output: type[Any] | None) -> JsonObject:
    """What an agent's node gives: a result of its type or a text, and what it said of itself."""
    answer = {"text": _TEXT, "result": _TEXT} if output is None else {"result": shape_of(output)}
    said: JsonObject = {
        "model": _TEXT,
        "confidence": {"type": "number"},
        "reasoning": _TEXT,
        "handoff": {"type": "object"},
    }
    return {"properties": answer | said}
