"""Test seams for conformance checks: only with `--conformance`, and only for test keys."""

from __future__ import annotations

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange, decode
from wopr.http.operation import Operation
from wopr.http.paging import PAGE_MOST
from wopr.http.runs import run_id
from wopr.http.webhooks import webhook_item
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
from wopr.protocol.webhooks import RegisterWebhook, WebhookItem
from wopr.runtime.conformance import (
    PROBE,
    TOGGLES,
    AgentDispatch,
    AgentDispatched,
    ClaimRequest,
    ClaimResult,
    GateRequest,
    GateResult,
    SampleWorkflow,
    decide_gate,
    dispatch_agent,
    race,
    sample_definition,
)
from wopr.runtime.tool_probe import ToolProbe, ToolProbed, probe


class SampleRegistered(Document, frozen=True, kw_only=True):
    """The workflow that was registered."""

    workflow_id: str


class CapabilityToggle(Closed, frozen=True, kw_only=True):
    """A capability to switch off or on for the tenant, or all back to what is advertised."""

    name: NonEmpty | Unset = UNSET
    value: bool | None = None
    reset: bool = False


class CapabilityOverlay(Document, frozen=True, kw_only=True, omit_defaults=False):
    """What the tenant switched, by capability."""

    overlay: dict[str, bool]


class VariableValues(Closed, frozen=True, kw_only=True):
    """Variables to set in a live run."""

    variables: JsonObject


class VariablesSet(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The variables of the run after the change."""

    run_id: str
    variables: JsonObject


class SurfaceCall(Closed, frozen=True, kw_only=True):
    """A call of one of the host's surfaces in the name of a test tenant."""

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
    """The webhook that was made or removed, or the test tenant's webhooks, newest first."""

    webhook_id: str | Unset = UNSET
    webhooks: list[WebhookItem] | Unset = UNSET


class DecisionRequest(Closed, frozen=True, kw_only=True):
    """Who wants to do what."""

    principal: NonEmpty
    action: NonEmpty
    resource: str = ""


class DecisionMade(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Whether the principal may."""

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


def _require_seams(exchange: Exchange) -> None:
    if not exchange.host.settings.conformance:
        raise NotFound(f"there is nothing at {exchange.scope['path']}")
    if not exchange.caller.is_test:
        raise Forbidden("Test seams are for test keys only.")


async def invoke_tool(exchange: Exchange) -> Answer:
    """Say what would come of a tool call, without making it."""
    host = exchange.host
    _require_seams(exchange)
    wanted = await exchange.document(ToolProbe)
    policy = host.advancer.services.tools
    return ok(await probe(policy, exchange.redactor, exchange.tenant, wanted))


async def register_sample(exchange: Exchange) -> Answer:
    """Register a workflow whose nodes run one after the other."""
    _require_seams(exchange)
    sample = await exchange.document(SampleWorkflow)
    overlay = exchange.host.capability_overlay.get(exchange.tenant, {})
    definition = sample_definition(sample, overlay)
    library = exchange.host.library
    await library.register(exchange.tenant, definition, may_author_conformance=True)
    return ok(SampleRegistered(workflow_id=sample.workflow_id), 201)


async def toggle_capability(exchange: Exchange) -> Answer:
    """Switch a capability for the registrations of the tenant.

    The switch is kept in the memory of this process. Another process of the same store does not
    see it, and it ends with the process.
    """
    _require_seams(exchange)
    request = await exchange.document(CapabilityToggle)
    overlays = exchange.host.capability_overlay
    if request.reset:
        overlays.pop(exchange.tenant, None)
    elif isinstance(request.name, Unset) or request.name not in (*TOGGLES, PROBE):
        known = ", ".join(TOGGLES)
        if isinstance(request.name, Unset):
            raise Refused(f"name is missing: it must be one of {known}", field="name")
        raise Refused(f'name must be one of {known}, not "{request.name}"', field="name")
    elif request.value is None:
        overlays.get(exchange.tenant, {}).pop(request.name, None)
    elif request.name != PROBE:
        overlays.setdefault(exchange.tenant, {})[request.name] = request.value
    return ok(CapabilityOverlay(overlay=overlays.get(exchange.tenant, {})))


async def call_surface(exchange: Exchange) -> Answer:
    """Register, list or remove webhooks of a test tenant, through the host's own registry."""
    _require_seams(exchange)
    raw = await exchange.raw_document()
    call = decode(raw, SurfaceCall)
    if call.surface != "webhooks":
        raise NotFound(f'This host has no surface "{call.surface}". It has: webhooks.')
    # Test tenants belong to the caller's tenant: no key can reach another tenant's data here.
    tenant = f"{exchange.tenant}:conformance:{call.tenant_id}"
    subscriptions = exchange.host.subscriptions
    match call.op:
        case "register":
            made = await subscriptions.register(tenant, decode(raw, RegisterCall).args)
            return ok(SurfaceResult(webhook_id=made.webhook_id))
        case "list":
            decode(raw, ListCall)
            rows = await exchange.host.store.webhooks(tenant, None, PAGE_MOST)
            now = exchange.host.sources.now()
            items = [webhook_item(row, now, exchange.redactor) for row in rows]
            return ok(SurfaceResult(webhooks=items))
        case "unregister":
            name = decode(raw, UnregisterCall).args.webhook_id
            await subscriptions.remove(tenant, name)
            return ok(SurfaceResult(webhook_id=name))
        case _:
            raise Refused(f"op must be register, list or unregister, not {call.op!r}", field="op")


async def set_variables(exchange: Exchange) -> Answer:
    """Set variables of a run that has not ended."""
    _require_seams(exchange)
    name = run_id(exchange)
    await exchange.host.readers.row(exchange.tenant, name)
    wanted = await exchange.document(VariableValues)
    by = exchange.caller.key_id
    commands = exchange.host.commands
    found = await commands.set_variables(exchange.tenant, name, wanted.variables, by=by)
    return ok(VariablesSet(run_id=name, variables=found))


async def claim_concurrently(exchange: Exchange) -> Answer:
    """Let several executors of one run reach one effect at once."""
    _require_seams(exchange)
    request = await exchange.document(ClaimRequest, optional=ClaimRequest())
    return ok(await race(exchange.host, exchange.tenant, request))


async def decide(exchange: Exchange) -> Answer:
    """Tell whether a key of the tenant holds a scope. An unknown principal holds none."""
    _require_seams(exchange)
    request = await exchange.document(DecisionRequest)
    scopes = await exchange.host.keyring.scopes(exchange.tenant, request.principal)
    allowed = scopes is not None and request.action in scopes
    reason = "the key holds the scope" if allowed else "no key of this tenant holds the scope"
    return ok(DecisionMade(allowed=allowed, reason=reason))


async def try_gate(exchange: Exchange) -> Answer:
    """Decide a governance gate in one of the named ways."""
    _require_seams(exchange)
    request = await exchange.document(GateRequest)
    return ok(await decide_gate(exchange.host, exchange.tenant, request))


async def dispatch(exchange: Exchange) -> Answer:
    """Run one turn of an installed agent."""
    _require_seams(exchange)
    agent = await exchange.host.agents.agent(exchange.tenant, exchange.path["agent_id"])
    request = await exchange.document(AgentDispatch, optional=AgentDispatch())
    return ok(await dispatch_agent(exchange.host, exchange.tenant, agent, request))


async def list_packs(exchange: Exchange) -> Answer:
    """List the installed agents by the pack that they belong to."""
    _require_seams(exchange)
    packs: dict[tuple[str, str], list[AgentManifest]] = {}
    for installed in await exchange.host.agents.newest(exchange.tenant):
        manifest = installed.manifest
        packs.setdefault((manifest.pack_name, manifest.version), []).append(manifest)
    listed = [Pack(name=n, version=v, agents=found) for (n, v), found in sorted(packs.items())]
    return ok(PackList(packs=listed))


async def export_packs(exchange: Exchange) -> Answer:
    """Export the manifests of the installed agents."""
    _require_seams(exchange)
    found = await exchange.host.agents.newest(exchange.tenant)
    return ok(ManifestExport(manifests=[installed.manifest for installed in found]))


_SEAM_ERRORS = (400, 401, 403, 404, 413, 415)
_SAMPLE = "/v1/host/sample"

OPERATIONS = (
    Operation(
        name="probeToolHooks",
        method="POST",
        path=f"{_SAMPLE}/toolhooks/invoke",
        handler=invoke_tool,
        summary="Try the rules for tool calls (with --conformance)",
        tag="conformance",
        scope="runs:create",
        body=ToolProbe,
        answer=ToolProbed,
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
        answer=SampleRegistered,
        errors=(*_SEAM_ERRORS, 409),
        is_extension=True,
    ),
    Operation(
        name="toggleCapability",
        method="POST",
        path=f"{_SAMPLE}/test/capability-toggle",
        handler=toggle_capability,
        summary="Switch a capability for registrations (with --conformance)",
        tag="conformance",
        scope="workflows:write",
        body=CapabilityToggle,
        answer=CapabilityOverlay,
        errors=_SEAM_ERRORS,
        is_extension=True,
    ),
    Operation(
        name="callSurface",
        method="POST",
        path=f"{_SAMPLE}/test/surface",
        handler=call_surface,
        summary="Use a surface of the host as a test tenant (with --conformance)",
        tag="conformance",
        scope="webhooks:manage",
        body=SurfaceCall,
        answer=SurfaceResult,
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
        answer=VariablesSet,
        errors=(*_SEAM_ERRORS, 409),
        is_extension=True,
    ),
    Operation(
        name="claimConcurrently",
        method="POST",
        path=f"{_SAMPLE}/test/idempotency/concurrent-claim",
        handler=claim_concurrently,
        summary="Race several executors for one effect (with --conformance)",
        tag="conformance",
        scope="runs:create",
        body=ClaimRequest,
        body_is_optional=True,
        answer=ClaimResult,
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
        answer=DecisionMade,
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
        answer=GateResult,
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
        answer=AgentDispatched,
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
        answer=PackList,
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
        answer=ManifestExport,
        errors=(401, 403, 404),
        is_extension=True,
    ),
)
