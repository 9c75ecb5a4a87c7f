"""The variables of a workflow, from the type of its inputs."""

from __future__ import annotations

from wopr.api.shapes import kinds, members, required, variable_type
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.protocol.workflow import VariableType, WorkflowVariable


def variables_of(shape: JsonObject) -> dict[str, WorkflowVariable]:
    """A variable for every member of the inputs' type that has one kind of value.

    A member of several kinds needs no declaration: a run takes any value for it.
    """
    needed = required(shape)
    return {
        name: declared(name, part, is_required=name in needed, default=part.get("default", UNSET))
        for name, part in (members(shape) or {}).items()
        if len(kinds(part) - {"null"}) == 1
    }


def declared(name: str, shape: JsonObject, *, is_required: bool, default: Json) -> WorkflowVariable:
    """One variable."""
    kind: VariableType = variable_type(shape)
    return WorkflowVariable(
        name=name,
        type=kind,
        required=is_required,
        default_value=UNSET if default is None else default,
    )
