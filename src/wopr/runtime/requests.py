"""A run request, checked against the caller, the host and the workflow before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import msgspec

from wopr.nodes.mock_providers import script
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
from wopr.protocol.runs import Configurable, CreateRun, Owner
from wopr.runtime.library import Compiled, Library
from wopr.runtime.settings import Settings
from wopr.runtime.starting import check_inputs, check_test_hooks
from wopr.security.keys import Principal

DEEPEST_METADATA = 4
OLDEST_ENGINE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A request that may be carried out."""

    request: CreateRun
    compiled: Compiled
    owner: Owner
    engine_version: int = ENGINE_VERSION
    traceparent: str = ""
    dedup: bool = False
    # How the request came, where that is not the API.
    transport: str = ""
    # Named by whoever must find the run again after a crash; otherwise the host names it.
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
    """Check a create request in the order: who may, which workflow, which options, which inputs."""
    if not isinstance(request.tenant_id, Unset) and request.tenant_id != principal.tenant:
        raise Forbidden("tenantId names a tenant that this key is no member of", field="tenantId")
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
    for name, value, capability, way_out in (
        ("callbackUrl", request.callback_url, "runs.callbackUrl", "register a webhook and tag"),
        ("residency", request.residency, "residency.supported", "leave it out of"),
    ):
        if not isinstance(value, Unset):
            raise CapabilityRequired(
                f"{name} needs {capability}, which this host does not advertise; {way_out} the run",
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
    compiled: Compiled,
    *,
    principal: Principal,
    library: Library,
    settings: Settings,
) -> None:
    """Check what a branch changes of its source, whose `run.started` says what that was."""
    check_test_hooks(compiled)
    overlay = request.run_options_overlay
    if overlay.configurable:
        _check_options(overlay.configurable, principal)
        changed = started.get("configurable", {}) | overlay.configurable
        await _check_schema(changed, compiled, library, principal.tenant)
    if overlay.metadata:
        _check_metadata(overlay.metadata, settings.max_metadata_bytes)
    if request.mode == "branch":
        _refuse_masked(request, started, compiled)
    if overlay.inputs:
        inputs = started.get("inputs", {}) | overlay.inputs
        check_inputs(compiled, inputs, given=overlay.inputs)


def _refuse_masked(request: ForkRun, started: JsonObject, compiled: Compiled) -> None:
    """Refuse to go on with values that the log holds only masked."""
    graph = compiled.graph
    if request.from_seq:
        marked = any(any(n.output_sensitivity.values()) for n in graph.nodes.values())
        if graph.sensitive_variables or graph.sensitive_channels or marked:
            raise Unprocessable(
                "the run's sensitive values are on record only masked: branch off from 0",
                field="fromSeq",
            )
        return
    given = request.run_options_overlay.inputs
    for name in sorted(graph.sensitive_variables & started.get("inputs", {}).keys()):
        if name not in given:
            raise Unprocessable(
                f"inputs.{name} is on record only masked: give it again in the overlay",
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
        script(options.mock_provider)


async def _check_schema(
    configurable: JsonObject, compiled: Compiled, library: Library, tenant: str
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


def _check_metadata(metadata: JsonObject, most_bytes: int) -> None:
    if _depth(metadata) > DEEPEST_METADATA:
        raise Refused(f"metadata may be nested {DEEPEST_METADATA} deep at most", field="metadata")
    size = len(encode(metadata))
    if size > most_bytes:
        raise Refused(f"metadata may have at most {most_bytes} bytes, not {size}", field="metadata")


def _depth(value: Json) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, cast("JsonObject", value).values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, cast("list[object]", value)), default=0)
    return 0
