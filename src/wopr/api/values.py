"""Where a node's inputs come from, as values that a program can pass on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from wopr.api.errors import WorkflowError
from wopr.api.shapes import ANYTHING, fits, members, shape_of, told
from wopr.nodes.typed import to_json
from wopr.protocol.documents import JsonObject
from wopr.protocol.names import not_there
from wopr.protocol.workflow import (
    ConnectionPort,
    ExpressionPort,
    PortValue,
    StaticPort,
    VariablePort,
)

if TYPE_CHECKING:
    from wopr.api.nodes import Node


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the run, or a part of one; the run's inputs are variables."""

    name: str
    shape: JsonObject

    def __getitem__(self, key: str) -> Variable:
        """A member of an object."""
        return Variable(f"{self.name}.{key}", _member(self.name, self.shape, key))

    def port(self) -> PortValue:
        """The value on the wire."""
        return VariablePort(variable_name=self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """An output of a node, or a part of one."""

    node: Node
    key: str
    shape: JsonObject

    def __getitem__(self, key: str) -> Output:
        """A member of an object."""
        what = f"output {self.key} of node {self.node.id}"
        return Output(self.node, f"{self.key}.{key}", _member(what, self.shape, key))

    def port(self) -> PortValue:
        """The value on the wire."""
        return ConnectionPort(node_id=self.node.id, output_key=self.key)


@dataclass(frozen=True, slots=True)
class Expression:
    """A value that is computed when the node starts; see `expr`."""

    text: str
    shape: JsonObject

    def port(self) -> PortValue:
        """The value on the wire."""
        return ExpressionPort(expression=self.text)


Source: TypeAlias = Variable | Output | Expression


def expr(text: str, kind: Any = Any) -> Expression:
    """Compute a value with a CEL expression; it sees `inputs`, `variables` and `nodes`."""
    return Expression(text, shape_of(kind))


class Inputs:
    """The inputs of a run by name: `flow.inputs.customer` or `flow.inputs["customer"]`."""

    def __init__(self, what: str, shape: JsonObject) -> None:
        self._what = what
        self._shape = shape

    def __getattr__(self, name: str) -> Variable:
        """An input by its name as an attribute."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Variable:
        """An input by its name."""
        return Variable(name, _member(self._what, self._shape, name))


def port_of(value: object) -> PortValue:
    """A value as the port that gives it: a source, or anything that JSON can say."""
    if isinstance(value, Variable | Output | Expression):
        return value.port()
    return StaticPort(value=to_json(value))


def value_faults(
    values: Mapping[str, object], shape: JsonObject, wanted: list[str]
) -> Iterator[str]:
    """Name every value that is missing, unknown or of another kind than the shape wants."""
    known = members(shape)
    for name in wanted:
        if name not in values:
            yield f"input {name!r} is missing"
    for name, value in values.items():
        if known is not None and name not in known:
            yield f"input {name!r} is not one of it: {not_there(name, known)}"
        elif known is not None:
            yield from _kind_faults(name, value, known[name])


def _kind_faults(name: str, value: object, wanted: JsonObject) -> Iterator[str]:
    shape = value.shape if isinstance(value, Variable | Output | Expression) else _shape(value)
    if not fits(shape, wanted):
        yield f"input {name!r} wants {told(wanted)}, and is given {told(shape)}"


def _shape(value: object) -> JsonObject:
    return {"const": to_json(value)}


def _member(what: str, shape: JsonObject, key: str) -> JsonObject:
    known = members(shape)
    if known is None:
        return ANYTHING
    if key not in known:
        raise WorkflowError(what, [f"there is no {key!r}: {not_there(key, known)}"])
    return known[key]
