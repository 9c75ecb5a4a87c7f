"""Requests for new runs: checks of the caller, the options and the inputs, and the first event."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, cast

import msgspec

from wopr.agents.models.mock import read_script
from wopr.engine.state import RunIdentity
from wopr.process.settings import Settings
from wopr.protocol.documents import Json, JsonObject, Unset, encode
from wopr.protocol.errors import (
    BadEngineVersion,
    CapabilityRequired,
    Forbidden,
    Refused,
    Unprocessable,
)
from wopr.protocol.events import ENGINE_VERSION
from wopr.protocol.forks import ForkRun
from wopr.protocol.json_schema.validation import Fault, first_faults
from wopr.protocol.runs import Configurable, CreateRun, Owner, RunAccepted
from wopr.protocol.suggestions import shorten_name, suggest_name
from wopr.protocol.workflow import VariableType, WorkflowVariable
from wopr.runs.definitions.library import CompiledWorkflow, Library
from wopr.runs.sensitive_values import has_sensitive_values
from wopr.security.api_keys import Principal

MAX_METADATA_DEPTH: Final = 4
OLDEST_ENGINE: Final = 1
# Number of unknown inputs that an error names, each with a suggestion.
_MAX_NAMED: Final = 10
_VARIABLE_TYPES: dict[VariableType, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A checked request for a new run."""

    request: CreateRun
    compiled: CompiledWorkflow
    owner: Owner
    engine_version: int = ENGINE_VERSION
    traceparent: str = ""
    dedup: bool = False
    # The transport of the request, if it is not REST.
    transport: str = ""
    # Set by a caller that must find the run again after a crash. Otherwise the host makes it.
    run_id: str = ""


async def check_request(
    request: CreateRun,
    *,
    principal: Principal,
    library: Library,
    settings: Settings,
    force_engine_version: str | None = None,
    traceparent: str = "",
    dedup: bool = False,
    transport: str = "",
) -> NewRun:
    """Check a create request: the caller, then the workflow, the options and the inputs."""
    if not isinstance(request.tenant_id, Unset) and request.tenant_id != principal.tenant:
        raise Forbidden("tenantId is not the tenant of this key.", field="tenantId")
    _refuse_unsupported(request)
    engine_version = _engine_version(force_engine_version, principal)
    compiled = await library.newest(principal.tenant, request.workflow_id)
    check_test_hooks(compiled)
    if request.configurable:
        _check_options(request.configurable, principal)
    if compiled.configurable_schema is not None:
        await _check_schema(request.configurable, compiled, library, principal.tenant)
    if request.metadata:
        _check_metadata(request.metadata, settings.max_metadata_bytes)
    check_inputs(compiled, request.inputs, given=request.inputs)
    return NewRun(
        request=request,
        compiled=compiled,
        owner=Owner(tenant=principal.tenant, principal=principal.key_id),
        engine_version=engine_version,
        traceparent=traceparent,
        dedup=dedup,
        transport=transport,
    )


def _refuse_unsupported(request: CreateRun) -> None:
    for name, value, capability, instead in (
        ("callbackUrl", request.callback_url, "runs.callbackUrl", "register a webhook and tag"),
        ("residency", request.residency, "residency.supported", "leave it out of"),
    ):
        if not isinstance(value, Unset):
            raise CapabilityRequired(
                f"{name} needs {capability}, which this host does not advertise; {instead} the run",
                field=name,
                requiredCapability=capability,
            )


def _engine_version(forced: str | None, principal: Principal) -> int:
    if forced is None:
        return ENGINE_VERSION
    if not principal.is_test:
        raise Forbidden(
            "X-Force-Engine-Version is for test keys only", code="force_engine_version_forbidden"
        )
    known = {str(version): version for version in range(OLDEST_ENGINE, ENGINE_VERSION + 1)}
    if forced not in known:
        raise BadEngineVersion(
            f"X-Force-Engine-Version must be {OLDEST_ENGINE} to {ENGINE_VERSION}",
            min=OLDEST_ENGINE,
            max=ENGINE_VERSION,
        )
    return known[forced]


async def check_overlay(
    request: ForkRun,
    started: JsonObject,
    compiled: CompiledWorkflow,
    *,
    principal: Principal,
    library: Library,
    settings: Settings,
) -> None:
    """Check the changes of a branch. `started` is the payload of its source's `run.started`."""
    check_test_hooks(compiled)
    overlay = request.run_options_overlay
    if overlay.configurable:
        _check_options(overlay.configurable, principal)
        changed = started.get("configurable", {}) | overlay.configurable
        await _check_schema(changed, compiled, library, principal.tenant)
    if overlay.metadata:
        _check_metadata(overlay.metadata, settings.max_metadata_bytes)
    if request.mode == "branch":
        _require_masked_values(request, started, compiled)
    if overlay.inputs:
        inputs = started.get("inputs", {}) | overlay.inputs
        check_inputs(compiled, inputs, given=overlay.inputs)


def _require_masked_values(
    request: ForkRun, started: JsonObject, compiled: CompiledWorkflow
) -> None:
    """Raise `Unprocessable` for a branch that needs values which are masked in the log."""
    graph = compiled.graph
    if request.from_seq:
        if has_sensitive_values(graph):
            raise Unprocessable(
                "Sensitive values of the run are masked in its log. Branch from fromSeq 0.",
                field="fromSeq",
            )
        return
    given = request.run_options_overlay.inputs
    for name in sorted(graph.sensitive_variables & started.get("inputs", {}).keys()):
        if name not in given:
            raise Unprocessable(
                f"inputs.{name} is masked in the log. Set it in runOptionsOverlay.inputs.",
                field=f"runOptionsOverlay.inputs.{name}",
            )


def _check_options(configurable: JsonObject, principal: Principal) -> None:
    try:
        options = msgspec.convert(configurable, Configurable)
    except msgspec.ValidationError as fault:
        message, _, path = str(fault).partition(" - at ")
        name = path.strip("`").replace("$", "configurable", 1) or "configurable"
        raise Refused(f"{name}: {message}", field=name) from fault
    if not isinstance(options.mock_provider, Unset):
        if not principal.is_test:
            raise Forbidden(
                "configurable.mockProvider is for test keys only", code="mock_provider_forbidden"
            )
        read_script(options.mock_provider)


async def _check_schema(
    configurable: JsonObject, compiled: CompiledWorkflow, library: Library, tenant: str
) -> None:
    schema = compiled.configurable_schema
    if schema is None:
        return
    found = await library.subprocesses.run(tenant, lambda: schema.violations(configurable))
    faults = [{"path": each.place("configurable"), "message": each.message} for each in found]
    if faults:
        raise Refused(
            f"{faults[0]['path']}: {faults[0]['message']}", field=faults[0]["path"], errors=faults
        )


def _check_metadata(metadata: JsonObject, max_bytes: int) -> None:
    if _depth(metadata) > MAX_METADATA_DEPTH:
        raise Refused(
            f"metadata may be nested at most {MAX_METADATA_DEPTH} levels deep", field="metadata"
        )
    size = len(encode(metadata))
    if size > max_bytes:
        raise Refused(f"metadata may have at most {max_bytes} bytes, not {size}", field="metadata")


def _depth(value: Json) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, cast("JsonObject", value).values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, cast("list[object]", value)), default=0)
    return 0


def check_inputs(
    compiled: CompiledWorkflow, inputs: JsonObject, given: Collection[str] = ()
) -> None:
    """Raise `Refused` for inputs that are missing, of the wrong type or unknown.

    `given` are the names that a client chose. Names that the host passes to a run, such as those of
    a parent's mapping, are not checked.
    """
    faults = first_faults(_input_faults(compiled, inputs, given))
    if faults:
        raise Refused(
            "; ".join(f"{fault.path} {fault.message}" for fault in faults),
            field=faults[0].path,
            errors=[{"path": fault.path, "message": fault.message} for fault in faults],
        )


def _input_faults(
    compiled: CompiledWorkflow, inputs: JsonObject, given: Collection[str]
) -> Iterator[Fault]:
    for variable in compiled.definition.variables:
        fault = _input_fault(variable, inputs)
        if fault is not None:
            yield Fault(path=f"inputs.{variable.name}", message=fault)
    known = compiled.interface.declared
    unknown = compiled.interface.unknown_inputs(given)
    for name in islice(unknown, _MAX_NAMED):
        message = f"is not an input of {compiled.workflow_id}: {suggest_name(name, known)}"
        yield Fault(path=f"inputs.{shorten_name(name)}", message=message)
    more = sum(1 for _ in unknown)
    if more:
        yield Fault(path="inputs", message=f"has {more} more unknown names")


def check_test_hooks(compiled: CompiledWorkflow) -> None:
    """Raise `CapabilityRequired` for a workflow with test hooks that this host does not honour."""
    for node_id, hook in compiled.test_hooks.items():
        raise CapabilityRequired(
            f"node {node_id}: {hook} needs conformance.mockAgent, which this host does not "
            "advertise; start the host with --conformance",
            requiredCapability="conformance.mockAgent",
            offendingTypeId=compiled.graph.nodes[node_id].type_id,
            nodeId=node_id,
        )


def _input_fault(variable: WorkflowVariable, inputs: JsonObject) -> str | None:
    if variable.name not in inputs:
        has_default = not isinstance(variable.default_value, Unset)
        if has_default or not variable.required:
            return None
        return f"is missing: it is required and must be {_with_article(variable.type)}"
    value: Json = inputs[variable.name]
    has_type = isinstance(value, _VARIABLE_TYPES[variable.type]) and (
        variable.type == "boolean" or not isinstance(value, bool)
    )
    return None if has_type else f"must be {_with_article(variable.type)}, not {_type_name(value)}"


def _with_article(kind: VariableType) -> str:
    return f"an {kind}" if kind in ("object", "array") else f"a {kind}"


def _type_name(value: Json) -> str:
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
    compiled: CompiledWorkflow,
    *,
    inputs: JsonObject,
    owner: Owner,
    configurable: JsonObject | None = None,
    engine_version: int = ENGINE_VERSION,
    **extra: Json,
) -> JsonObject:
    """Return the payload of `run.started`. With the definition, it has all that a replay needs."""
    owner_json: JsonObject = {"tenant": owner.tenant}
    if not isinstance(owner.principal, Unset):
        owner_json["principal"] = owner.principal
    payload: JsonObject = {
        "workflowId": compiled.workflow_id,
        "workflowVersion": compiled.version,
        "inputs": inputs,
        "transport": "rest",
        "engineVersion": str(engine_version),
        "owner": owner_json,
    }
    if configurable:
        payload["configurable"] = configurable
    payload.update({name: value for name, value in extra.items() if value})
    return payload


def run_accepted(identity: RunIdentity, started_at: str) -> RunAccepted:
    """Return the response to a request that starts a run."""
    base = f"/v1/runs/{identity.run_id}"
    # The protocol has no terminal status here, even when the run has ended already.
    return RunAccepted(
        run_id=identity.run_id,
        workflow_id=identity.workflow_id,
        status="running",
        events_url=f"{base}/events",
        status_url=base,
        started_at=started_at,
    )
