"""Test routes for conformance checks: only with `--conformance`, and only for test keys."""

from __future__ import annotations

from wopr.host.conformance import (
    PROBE_CAPABILITY,
    TOGGLES,
    AgentDispatch,
    AgentDispatched,
    ClaimRequest,
    ClaimResult,
    GateRequest,
    GateResult,
    SampleWorkflow,
    ToolProbe,
    ToolProbed,
    decide_gate,
    dispatch_agent,
    probe_tool_call,
    run_concurrent_executors,
    sample_definition,
)
from wopr.http.operation import MAX_PAGE_SIZE, Operation
from wopr.http.request import Request, decode
from wopr.http.response import Response, ok
from wopr.http.routes.runs import run_id_of
from wopr.http.routes.webhooks import webhook_item
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Id,
    JsonObject,
    NonEmpty,
    Unset,
)
from wopr.protocol.errors import Forbidden, NotFound, Refused
from wopr.protocol.manifests import AgentManifest
from wopr.protocol.resources.webhooks import RegisterWebhook, WebhookItem


class SampleRegistered(Document, frozen=True, kw_only=True):
    """The workflow that was registered."""

    workflow_id: str


class CapabilityToggle(Closed, frozen=True, kw_only=True):
    """A capability to switch on or off for the tenant. `reset` removes all changes."""

    name: NonEmpty | Unset = UNSET
    value: bool | None = None
    reset: bool = False


class CapabilityOverlay(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The capabilities that the tenant switched on or off."""

    overlay: dict[str, bool]


class VariableValues(Closed, frozen=True, kw_only=True):
    """Variables to set in a live run."""

    variables: JsonObject


class VariablesSet(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The variables of the run after the change."""

    run_id: str
    variables: JsonObject


class SurfaceCall(Closed, frozen=True, kw_only=True):
    """A call of one of the host's surfaces for a test tenant."""

    tenant_id: Id
    surface: NonEmpty
    op: NonEmpty
    args: JsonObject = {}


class WebhookName(Closed, frozen=True, kw_only=True):
    """The webhook to remove."""

    webhook_id: Id


class NoArguments(Closed, frozen=True, kw_only=True):
    """An operation without arguments."""


class RegisterCall(Document, frozen=True, kw_only=True):
    """The arguments of `register`."""

    args: RegisterWebhook


class ListCall(Document, frozen=True, kw_only=True):
    """The arguments of `list`."""

    args: NoArguments = NoArguments()


class UnregisterCall(Document, frozen=True, kw_only=True):
    """The arguments of `unregister`."""

    args: WebhookName


class SurfaceResult(Document, frozen=True, kw_only=True):
    """The webhook that was created or removed, or the test tenant's webhooks, newest first."""

    webhook_id: str | Unset = UNSET
    webhooks: list[WebhookItem] | Unset = UNSET


class DecisionRequest(Closed, frozen=True, kw_only=True):
    """The principal, action and resource of an authorization check."""

    principal: NonEmpty
    action: NonEmpty
    resource: str = ""


class DecisionMade(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The result of an authorization check."""

    allowed: bool
    reason: str


class Pack(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The agents that belong to one version of a pack."""

    name: str
    version: str
    agents: list[AgentManifest]


class PackList(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Every pack of the tenant, by name."""

    packs: list[Pack]


class ManifestExport(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The manifests of every agent that the tenant can use, by id."""

    manifests: list[AgentManifest]


def _require_seams(request: Request) -> None:
    if not request.host.settings.conformance:
        raise NotFound(f"the path {request.scope['path']} does not exist")
    if not request.caller.is_test:
        raise Forbidden("Test seams are for test keys only.")


async def invoke_tool(request: Request) -> Response:
    """Return the decision for a tool call, without the call."""
    host = request.host
    _require_seams(request)
    wanted = await request.document(ToolProbe)
    policy = host.advancer.services.tools
    return ok(await probe_tool_call(policy, request.redactor, request.tenant, wanted))


async def register_sample(request: Request) -> Response:
    """Register a workflow whose nodes run one after the other."""
    _require_seams(request)
    sample = await request.document(SampleWorkflow)
    overlay = request.host.capability_overlay.get(request.tenant, {})
    definition = sample_definition(sample, overlay)
    library = request.host.library
    await library.register(request.tenant, definition, may_author_conformance=True)
    return ok(SampleRegistered(workflow_id=sample.workflow_id), 201)


async def toggle_capability(request: Request) -> Response:
    """Switch a capability on or off for the registrations of the tenant.

    The change is stored only in the memory of this process.
    """
    _require_seams(request)
    document = await request.document(CapabilityToggle)
    overlays = request.host.capability_overlay
    if document.reset:
        overlays.pop(request.tenant, None)
    elif isinstance(document.name, Unset) or document.name not in (*TOGGLES, PROBE_CAPABILITY):
        known = ", ".join(TOGGLES)
        if isinstance(document.name, Unset):
            raise Refused(f"name is missing: it must be one of {known}", field="name")
        raise Refused(f'name must be one of {known}, not "{document.name}"', field="name")
    elif document.value is None:
        overlays.get(request.tenant, {}).pop(document.name, None)
    elif document.name != PROBE_CAPABILITY:
        overlays.setdefault(request.tenant, {})[document.name] = document.value
    return ok(CapabilityOverlay(overlay=overlays.get(request.tenant, {})))


async def call_surface(request: Request) -> Response:
    """Register, list or remove webhooks of a test tenant, through the host's own registry."""
    _require_seams(request)
    raw = await request.raw_document()
    call = decode(raw, SurfaceCall)
    if call.surface != "webhooks":
        raise NotFound(f'This host has no surface "{call.surface}". It has: webhooks.')
    # Test tenants belong to the caller's tenant: no key can reach another tenant's data here.
    tenant = f"{request.tenant}:conformance:{call.tenant_id}"
    subscriptions = request.host.subscriptions
    match call.op:
        case "register":
            made = await subscriptions.register(tenant, decode(raw, RegisterCall).args)
            return ok(SurfaceResult(webhook_id=made.webhook_id))
        case "list":
            decode(raw, ListCall)
            rows = await request.host.store.webhooks(tenant, None, MAX_PAGE_SIZE)
            now = request.host.sources.now()
            items = [webhook_item(row, now, request.redactor) for row in rows]
            return ok(SurfaceResult(webhooks=items))
        case "unregister":
            webhook_id = decode(raw, UnregisterCall).args.webhook_id
            await subscriptions.remove(tenant, webhook_id)
            return ok(SurfaceResult(webhook_id=webhook_id))
        case _:
            raise Refused(f"op must be register, list or unregister, not {call.op!r}", field="op")


async def set_variables(request: Request) -> Response:
    """Set variables of a run that has not ended."""
    _require_seams(request)
    run_id = run_id_of(request)
    await request.host.run_reader.row(request.tenant, run_id)
    wanted = await request.document(VariableValues)
    by = request.caller.key_id
    commands = request.host.commands
    found = await commands.set_variables(request.tenant, run_id, wanted.variables, by=by)
    return ok(VariablesSet(run_id=run_id, variables=found))


async def claim_concurrently(request: Request) -> Response:
    """Start several concurrent executors of one effect of a run."""
    _require_seams(request)
    document = await request.document(ClaimRequest, optional=ClaimRequest())
    return ok(await run_concurrent_executors(request.host, request.tenant, document))


async def decide(request: Request) -> Response:
    """Return whether a key of the tenant holds a scope. An unknown principal holds none."""
    _require_seams(request)
    document = await request.document(DecisionRequest)
    scopes = await request.host.keyring.scopes(request.tenant, document.principal)
    allowed = scopes is not None and document.action in scopes
    reason = "the key holds the scope" if allowed else "no key of this tenant holds the scope"
    return ok(DecisionMade(allowed=allowed, reason=reason))


async def try_gate(request: Request) -> Response:
    """Start a run with a governance gate, and decide the gate by the scenario."""
    _require_seams(request)
    document = await request.document(GateRequest)
    return ok(await decide_gate(request.host, request.tenant, document))


async def dispatch(request: Request) -> Response:
    """Run one turn of an installed agent."""
    _require_seams(request)
    agent = await request.host.agents.agent(request.tenant, request.path["agent_id"])
    document = await request.document(AgentDispatch, optional=AgentDispatch())
    return ok(await dispatch_agent(request.host, request.tenant, agent, document))


async def list_packs(request: Request) -> Response:
    """List the installed agents by the pack that they belong to."""
    _require_seams(request)
    packs: dict[tuple[str, str], list[AgentManifest]] = {}
    for installed in await request.host.agents.newest(request.tenant):
        manifest = installed.manifest
        packs.setdefault((manifest.pack_name, manifest.version), []).append(manifest)
    listed = [Pack(name=n, version=v, agents=found) for (n, v), found in sorted(packs.items())]
    return ok(PackList(packs=listed))


async def export_packs(request: Request) -> Response:
    """Export the manifests of the installed agents."""
    _require_seams(request)
    found = await request.host.agents.newest(request.tenant)
    return ok(ManifestExport(manifests=[installed.manifest for installed in found]))


_SEAM_ERRORS = (400, 401, 403, 404, 413, 415)
_SAMPLE = "/v1/host/sample"

OPERATIONS = (
    Operation(
        name="probeToolHooks",
        method="POST",
        path=f"{_SAMPLE}/toolhooks/invoke",
        handler=invoke_tool,
        summary="Check a tool call without calling the tool (with --conformance)",
        tag="conformance",
        scope="runs:create",
        body=ToolProbe,
        response=ToolProbed,
        errors=_SEAM_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="registerSampleWorkflow",
        method="POST",
        path=f"{_SAMPLE}/workflows",
        handler=register_sample,
        summary="Register a chain of nodes (with --conformance)",
        tag="conformance",
        scope="workflows:write",
        body=SampleWorkflow,
        success=201,
        response=SampleRegistered,
        errors=(*_SEAM_ERRORS, 409),
        is_extension=True,
    ),
    Operation(
        name="toggleCapability",
        method="POST",
        path=f"{_SAMPLE}/test/capability-toggle",
        handler=toggle_capability,
        summary="Switch a capability on or off for registrations (with --conformance)",
        tag="conformance",
        scope="workflows:write",
        body=CapabilityToggle,
        response=CapabilityOverlay,
        errors=_SEAM_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="callSurface",
        method="POST",
        path=f"{_SAMPLE}/test/surface",
        handler=call_surface,
        summary="Manage the webhooks of a test tenant (with --conformance)",
        tag="conformance",
        scope="webhooks:manage",
        body=SurfaceCall,
        response=SurfaceResult,
        errors=_SEAM_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="setRunVariables",
        method="POST",
        path=f"{_SAMPLE}/test/runs/{{run_id}}/variables",
        handler=set_variables,
        summary="Set variables of a live run (with --conformance)",
        tag="conformance",
        scope="runs:create",
        body=VariableValues,
        response=VariablesSet,
        errors=(*_SEAM_ERRORS, 409),
        is_extension=True,
    ),
    Operation(
        name="claimConcurrently",
        method="POST",
        path=f"{_SAMPLE}/test/idempotency/concurrent-claim",
        handler=claim_concurrently,
        summary="Let several executors compete for one effect (with --conformance)",
        tag="conformance",
        scope="runs:create",
        body=ClaimRequest,
        body_is_optional=True,
        response=ClaimResult,
        errors=_SEAM_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="decideAuthorization",
        method="POST",
        path=f"{_SAMPLE}/authorization/decide",
        handler=decide,
        summary="Ask whether a key holds a scope (with --conformance)",
        tag="conformance",
        scope="manifest:read",
        body=DecisionRequest,
        response=DecisionMade,
        errors=_SEAM_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="tryGovernanceGate",
        method="POST",
        path=f"{_SAMPLE}/governance/approval-gate",
        handler=try_gate,
        summary="Decide a governance gate (with --conformance)",
        tag="conformance",
        scope="runs:create",
        body=GateRequest,
        response=GateResult,
        errors=_SEAM_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="dispatchAgent",
        method="POST",
        path=f"{_SAMPLE}/agents/{{agent_id}}/dispatch",
        handler=dispatch,
        summary="Run one turn of an installed agent (with --conformance)",
        tag="conformance",
        scope="runs:create",
        body=AgentDispatch,
        body_is_optional=True,
        response=AgentDispatched,
        errors=_SEAM_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="listPacks",
        method="GET",
        path="/v1/packs",
        handler=list_packs,
        summary="List the installed agents by pack (with --conformance)",
        tag="conformance",
        scope="manifest:read",
        response=PackList,
        errors=(401, 403, 404),
        is_extension=True,
    ),
    Operation(
        name="exportPacks",
        method="GET",
        path="/v1/packs/export",
        handler=export_packs,
        summary="Export the manifests of the installed agents (with --conformance)",
        tag="conformance",
        scope="manifest:read",
        response=ManifestExport,
        errors=(401, 403, 404),
        is_extension=True,
    ),
)
