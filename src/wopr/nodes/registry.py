"""Node types: declaration, lookup and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any, TypeVar, cast, get_type_hints

import msgspec

from wopr.agents.threads import run_in_thread
from wopr.engine.outcome import (
    Breached,
    Completed,
    Failed,
    NodeFailure,
    Outcome,
    Sleeping,
    Suspended,
    Waiting,
)
from wopr.nodes.context import NodeContext
from wopr.protocol.documents import JsonObject
from wopr.protocol.json_schema.conversion import from_json, schema_of, to_json
from wopr.protocol.workflow import TypeId

Execute = Callable[[NodeContext, Any, Any], Any]
AskedKeys = Callable[[NodeContext, Any, Any], frozenset[str] | None]
F = TypeVar("F", bound=Callable[..., Any])

ENTRY_POINT_GROUP = "wopr.nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A type of node: its function, and the types of its config and inputs.

    A node that `is_async` is called in the background, after its start is committed. A plain
    function that `runs_in_thread` may block. Other plain functions are called while the run is
    advanced, and must not block: only built-in types have such functions.
    `reentrant` types may head a loop. `requires` names capabilities that the host must provide.
    """

    type_id: str
    execute: Execute
    config_type: type[Any] = dict
    inputs_type: type[Any] = dict
    is_async: bool = False
    runs_in_thread: bool = False
    reentrant: bool = False
    requires: tuple[str, ...] = ()
    conformance_only: bool = False
    description: str = ""
    # Other ids of the same type.
    aliases: tuple[str, ...] = ()
    # Whether the node gets an `AgentContext`, with models, tools, memory and confidence.
    uses_agent_context: bool = True
    # Returns the keys of the node's first model request, which a replay compares with the record;
    # None if they are not known in this process.
    asked_keys: AskedKeys | None = None

    def __post_init__(self) -> None:
        for type_id in (self.type_id, *self.aliases):
            try:
                msgspec.convert(type_id, TypeId)
            except msgspec.ValidationError:
                raise ValueError(
                    f"{type_id!r} is not the id of a node type: it starts with a lower-case "
                    "letter, followed by letters, digits, '.', '_' or '-', such as 'acme.send-mail'"
                ) from None

    def decode_config(self, config: JsonObject) -> Any:
        """Return the config as the node's type. Raises `msgspec.ValidationError` with the path."""
        return from_json(config, self.config_type)

    def decode_inputs(self, inputs: JsonObject) -> Any:
        """Return the inputs as the node's type. Raises `msgspec.ValidationError` with the path."""
        if self.inputs_type is JsonObject:
            return inputs
        return from_json(inputs, self.inputs_type)

    async def call(self, ctx: NodeContext, config: Any, inputs: Any) -> Outcome:
        """Call a node that may wait or block, and return its outcome."""
        if self.runs_in_thread:
            about = {"node_type": self.type_id, "node_id": ctx.node_id, "run_id": ctx.run_id}
            call = partial(self.execute, ctx, config, inputs)
            return as_outcome(await run_in_thread(call, self.execute, **about))
        return as_outcome(await self.execute(ctx, config, inputs))

    def schema(self) -> JsonObject:
        """Return the JSON Schemas of config and inputs, derived from the types."""
        return {
            "typeId": self.type_id,
            "description": self.description,
            "config": schema_of(self.config_type),
            "inputs": schema_of(self.inputs_type),
        }


def node(
    type_id: str,
    *,
    reentrant: bool = False,
    requires: Iterable[str] = (),
    conformance_only: bool = False,
    aliases: Iterable[str] = (),
    asked_keys: AskedKeys | None = None,
) -> Callable[[F], F]:
    """Declare a node type from a function `(ctx, config, inputs) -> outcome or outputs`.

    A plain function runs in a thread and may block. An `async` function shares the event loop with
    everything else in the process: it must await every operation that takes time.

    Args:
        type_id: The id of the node type, such as `acme.shout`.
        reentrant: Whether the node can head a loop.
        requires: Capabilities that the host must have.
        conformance_only: Whether only hosts with `--conformance` have the type.
        aliases: Further ids of the type.
        asked_keys: Returns the keys of the first model request, for comparison in a replay.

    Returns:
        A decorator. It does not change the function.

    Raises:
        TypeError: The function does not have three parameters.
        ValueError: `type_id` or an alias is not a valid id of a node type.

    Example:
        >>> from dataclasses import dataclass
        >>> from wopr import NodeContext, Workflow, node
        >>> @dataclass
        ... class Text:
        ...     text: str
        >>> @node("acme.shout")
        ... def shout(ctx: NodeContext, config: dict[str, object], inputs: Text) -> Text:
        ...     "Write a text in capitals."
        ...     return Text(inputs.text.upper())
        >>> flow = Workflow("loud", inputs=Text)
        >>> loud = flow.add("loud", shout, text=flow.inputs.text)
    """

    def declare(function: F) -> F:
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters)
        if len(parameters) != 3:
            raise TypeError(f"{type_id}: a node takes (ctx, config, inputs), not {parameters}")
        is_coroutine = inspect.iscoroutinefunction(function)
        declared = NodeType(
            type_id=type_id,
            execute=function,
            config_type=hints.get(parameters[1], dict),
            inputs_type=hints.get(parameters[2], dict),
            is_async=True,
            runs_in_thread=not is_coroutine,
            reentrant=reentrant,
            requires=tuple(requires),
            conformance_only=conformance_only,
            description=(inspect.getdoc(function) or "").split("\n", 1)[0],
            aliases=tuple(aliases),
            asked_keys=asked_keys,
        )
        function.__wopr_node__ = declared  # type: ignore[attr-defined]  # found by `node_types_in`
        return function

    return declare


def node_types_in(namespace: Mapping[str, object]) -> Iterator[NodeType]:
    """Yield every node type declared in a module's namespace, once for each of its ids."""
    for value in namespace.values():
        found = getattr(value, "__wopr_node__", None)
        if isinstance(found, NodeType):
            yield found
            yield from (replace(found, type_id=alias, aliases=()) for alias in found.aliases)


def node_type_of(function: Callable[..., Any]) -> NodeType:
    """Return the node type that a function was declared as."""
    found: NodeType = function.__wopr_node__  # type: ignore[attr-defined]  # set by `node`
    return found


class NodeRegistry:
    """The node types that a host knows."""

    def __init__(self, types: Iterable[NodeType] = ()) -> None:
        self._types: dict[str, NodeType] = {}
        for node_type in types:
            self.add(node_type)

    def add(self, node_type: NodeType) -> None:
        """Add a type. Raises `ValueError` if its id is registered."""
        if node_type.type_id in self._types:
            raise ValueError(f"node type {node_type.type_id} is already registered")
        self._types[node_type.type_id] = node_type

    def get(self, type_id: str) -> NodeType | None:
        """Return the type with an id, or None."""
        return self._types.get(type_id)

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self._types.values())

    @property
    def reentrant(self) -> frozenset[str]:
        """The ids of the types that may head a loop."""
        return frozenset(t.type_id for t in self if t.reentrant)

    def load_entry_points(self) -> None:
        """Add the types in entry points: a NodeType, a node function or a module."""
        for point in entry_points(group=ENTRY_POINT_GROUP):
            loaded: object = point.load()
            found = [loaded] if isinstance(loaded, NodeType) else _types_of(loaded)
            if not found:
                raise TypeError(f"entry point {point.name} has no node type")
            for node_type in found:
                self.add(node_type)


def _types_of(value: object) -> list[NodeType]:
    namespace = vars(value) if inspect.ismodule(value) else {"": value}
    return list(node_types_in(namespace))


def as_outcome(result: object) -> Outcome:
    """Return the outcome of a node that returned an outcome, or its outputs."""
    if isinstance(result, Completed | Failed | Sleeping | Waiting | Suspended | Breached):
        return result
    outputs = to_json({} if result is None else result)
    if not isinstance(outputs, dict):
        raise NodeFailure(
            f"a node must return an object of outputs, not {type(result).__name__}", retryable=False
        )
    return Completed(cast("JsonObject", outputs))
