"""The discovery document, its encoding with the copy under `capabilities`, and its entity tag."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

import msgspec

from wopr.protocol.discovery.agent_families import (
    Agents,
    AiProviders,
    Conformance,
    Dispatch,
    Envelopes,
    Memory,
    ModelCapabilities,
    MultiAgent,
    MultiPartyConversation,
    Orchestrator,
    ProviderUsageFamily,
    SubWorkflow,
    ToolHooks,
)
from wopr.protocol.discovery.families import (
    Auth,
    Authorization,
    Compliance,
    Discovery,
    Feedback,
    HttpClient,
    Idempotency,
    Interrupt,
    Kahn,
    Production,
    Replay,
    RestTransport,
    Runs,
    Secrets,
    Switch,
    Testing,
    Webhooks,
)
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Json,
    JsonObject,
    NonEmpty,
    Unset,
    encode,
    is_list,
    is_object,
)

_Whole = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
ProtocolVersion = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$")]


class Limits(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """Limits that the host enforces. The first three have the protocol's defaults."""

    clarification_rounds: _Whole = 3
    schema_rounds: _Whole = 2
    envelopes_per_turn: _Whole = 5
    max_node_executions: _Positive | Unset = UNSET
    max_run_duration_ms: Annotated[int, msgspec.Meta(ge=1000)] | Unset = UNSET
    max_loop_iterations: _Positive | Unset = UNSET
    max_budget_tokens: _Positive | Unset = UNSET
    max_budget_cost_usd: Annotated[float, msgspec.Meta(ge=0)] | Unset = UNSET
    max_request_body_bytes: _Positive | Unset = UNSET


class Implementation(Closed, frozen=True, kw_only=True):
    """The software that serves the host."""

    name: str | Unset = UNSET
    version: str | Unset = UNSET
    vendor: str | Unset = UNSET


class Otel(Document, frozen=True, kw_only=True):
    """How the host exports traces."""

    export_protocols: list[Literal["http/json", "http/protobuf", "grpc"]] | Unset = UNSET


class Observability(Document, frozen=True, kw_only=True):
    """The observability of the host."""

    otel: Otel | Unset = UNSET


class InterruptExtension(Document, frozen=True, kw_only=True):
    """Interrupt profiles, and the retention of events that arrive before their interrupt."""

    profiles: list[str] | Unset = UNSET
    signed_callback_tokens: bool | Unset = UNSET
    external_event_retention_seconds: _Whole | Unset = UNSET
    # The documentation of this host's vendor interrupt kind.
    vendor_kind_url: NonEmpty | Unset = UNSET
    # Whether events have that kind as their `kind`, although their schemas exclude it.
    literal_vendor_kind: bool | Unset = UNSET


class Extensions(Document, frozen=True, kw_only=True):
    """Additions that are not capability families."""

    interrupts: InterruptExtension | Unset = UNSET


class DiscoveryRoot(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The base fields of the document, which are not repeated under `capabilities`."""

    protocol_version: ProtocolVersion = "1.0"
    supported_envelopes: list[NonEmpty]
    schema_versions: dict[str, _Whole] = {}
    limits: Limits = Limits()
    implementation: Implementation | Unset = UNSET
    engine_version: _Whole | Unset = UNSET
    event_log_schema_version: _Whole | Unset = UNSET
    protocol_versions: list[ProtocolVersion] | Unset = UNSET
    min_client_version: str | Unset = UNSET
    supported_transports: list[Literal["rest", "mcp", "a2a", "grpc"]] | Unset = UNSET
    runtime_capabilities: list[NonEmpty] | Unset = UNSET
    configurable: JsonObject | Unset = UNSET
    observability: Observability | Unset = UNSET
    extensions: Extensions | Unset = UNSET


class Capabilities(DiscoveryRoot, frozen=True, kw_only=True, omit_defaults=False):
    """All capability families of the host. Each family is optional."""

    agents: Agents | Unset = UNSET
    multi_agent: MultiAgent | Unset = UNSET
    orchestrator: Orchestrator | Unset = UNSET
    dispatch: Dispatch | Unset = UNSET
    conversation_primitive: bool | Unset = UNSET
    multi_party_conversation: MultiPartyConversation | Unset = UNSET
    sub_workflow: SubWorkflow | Unset = UNSET
    conformance: Conformance | Unset = UNSET
    fixtures: list[NonEmpty] | Unset = UNSET
    tool_hooks: ToolHooks | Unset = UNSET
    provider_usage: ProviderUsageFamily | Unset = UNSET
    ai_providers: AiProviders | Unset = UNSET
    model_capabilities: ModelCapabilities | Unset = UNSET
    envelopes: Envelopes | Unset = UNSET
    memory: Memory | Unset = UNSET
    runs: Runs | Unset = UNSET
    replay: Replay | Unset = UNSET
    feedback: Feedback | Unset = UNSET
    debug_bundle: Switch | Unset = UNSET
    webhooks: Webhooks | Unset = UNSET
    interrupt: Interrupt | Unset = UNSET
    auth: Auth | Unset = UNSET
    authorization: Authorization | Unset = UNSET
    secrets: Secrets | Unset = UNSET
    compliance: Compliance | Unset = UNSET
    idempotency: Idempotency | Unset = UNSET
    production: Production | Unset = UNSET
    testing: Testing | Unset = UNSET
    http_client: HttpClient | Unset = UNSET
    rest_transport: RestTransport | Unset = UNSET
    discovery: Discovery | Unset = UNSET
    kahn: Kahn | Unset = UNSET


# The wire names of the families: all fields of the document except its base fields.
FAMILIES: Final[tuple[str, ...]] = tuple(
    name
    for name in Capabilities.__struct_encode_fields__
    if name not in DiscoveryRoot.__struct_encode_fields__
)


def encode_discovery(root: Capabilities) -> bytes:
    """Encode the document, with the families repeated under `capabilities`.

    Some published clients read the families at the root, others only under `capabilities`. RFC 0056
    has feedback as a member of `host`, so it is repeated there. Raises `ValueError` for a list with
    equal items: all lists of the document are sets.
    """
    fields: JsonObject = msgspec.to_builtins(root)
    _require_sets("$", fields)
    families = {name: fields[name] for name in FAMILIES if name in fields}
    if "feedback" in fields:
        fields["host"] = {"feedback": fields["feedback"]}
    return encode({**fields, "capabilities": families})


def _require_sets(path: str, value: Json) -> None:
    if is_object(value):
        for name, member in value.items():
            _require_sets(f"{path}.{name}", member)
    elif is_list(value) and any(member in value[:place] for place, member in enumerate(value)):
        raise ValueError(f"{path} has the same item twice")


def etag(body: bytes) -> str:
    """Return a strong entity tag, which changes with any byte of the document."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'
