"""What a new run starts with: inputs checked against the workflow, and its first event."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from wopr.engine.state import RunIdentity
from wopr.protocol.checking import Fault, first_faults
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import CapabilityRequired, Refused
from wopr.protocol.events import ENGINE_VERSION
from wopr.protocol.names import not_there, shown
from wopr.protocol.runs import Owner, RunAccepted
from wopr.protocol.workflow import VariableType, WorkflowVariable
from wopr.runtime.library import Compiled

_KINDS: dict[VariableType, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


# Unknown inputs that an error names, each with a suggestion.
_MOST_NAMED: Final = 10


def check_inputs(compiled: Compiled, inputs: JsonObject, given: Collection[str] = ()) -> None:
    """Refuse inputs that are missing, of the wrong type or unknown, naming the first of them.

    `given` are the names that a client chose. Names that the host itself passes to a run, such as
    those of a parent's mapping, are not checked.
    """
    faults = first_faults(_input_faults(compiled, inputs, given))
    if faults:
        raise Refused(
            "; ".join(f"{fault.path} {fault.message}" for fault in faults),
            field=faults[0].path,
            errors=[{"path": fault.path, "message": fault.message} for fault in faults],
        )


def _input_faults(
    compiled: Compiled, inputs: JsonObject, given: Collection[str]
) -> Iterator[Fault]:
    for variable in compiled.definition.variables:
        fault = _fault(variable, inputs)
        if fault is not None:
            yield Fault(path=f"inputs.{variable.name}", message=fault)
    known = compiled.interface.declared
    unknown = compiled.interface.unknown_inputs(given)
    for name in islice(unknown, _MOST_NAMED):
        message = f"is not an input of {compiled.workflow_id}: {not_there(name, known)}"
        yield Fault(path=f"inputs.{shown(name)}", message=message)
    more = sum(1 for _ in unknown)
    if more:
        yield Fault(path="inputs", message=f"has {more} more unknown names")


def check_test_hooks(compiled: Compiled) -> None:
    """Refuse a workflow whose nodes need test hooks that this host does not honour."""
    for node_id, hook in compiled.test_hooks.items():
        raise CapabilityRequired(
            f"node {node_id}: {hook} needs conformance.mockAgent, which this host does not "
            "advertise; start the host with --conformance",
            requiredCapability="conformance.mockAgent",
            offendingTypeId=compiled.graph.nodes[node_id].type_id,
            nodeId=node_id,
        )


def _fault(variable: WorkflowVariable, inputs: JsonObject) -> str | None:
    if variable.name not in inputs:
        has_default = not isinstance(variable.default_value, Unset)
        if has_default or not variable.required:
            return None
        return f"is missing: it is required and must be {_article(variable.type)}"
    value: Json = inputs[variable.name]
    is_right = isinstance(value, _KINDS[variable.type]) and (
        variable.type == "boolean" or not isinstance(value, bool)
    )
    return None if is_right else f"must be {_article(variable.type)}, not {_name(value)}"


def _article(kind: VariableType) -> str:
    return f"an {kind}" if kind in ("object", "array") else f"a {kind}"


def _name(value: Json) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "an array"
        case str():
            return "a string"
        case bool():
            return "a boolean"
        case _:
            return "a number"


def started_payload(
    compiled: Compiled,
    *,
    inputs: JsonObject,
    owner: Owner,
    configurable: JsonObject | None = None,
    engine_version: int = ENGINE_VERSION,
    **extra: Json,
) -> JsonObject:
    """The payload of `run.started`: with the definition, all that a replay needs."""
    who: JsonObject = {"tenant": owner.tenant}
    if not isinstance(owner.principal, Unset):
        who["principal"] = owner.principal
    payload: JsonObject = {
        "workflowId": compiled.workflow_id,
        "workflowVersion": compiled.version,
        "inputs": inputs,
        "transport": "rest",
        "engineVersion": str(engine_version),
        "owner": who,
    }
    if configurable:
        payload["configurable"] = configurable
    payload.update({name: value for name, value in extra.items() if value})
    return payload


def run_accepted(identity: RunIdentity, started_at: str) -> RunAccepted:
    """The answer to a request that starts a run."""
    base = f"/v1/runs/{identity.run_id}"
    # The wire has no terminal status here: the run was accepted, and readers see how it went on.
    return RunAccepted(
        run_id=identity.run_id,
        workflow_id=identity.workflow_id,
        status="running",
        events_url=f"{base}/events",
        status_url=base,
        started_at=started_at,
    )
