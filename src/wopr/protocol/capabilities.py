"""The discovery document: one value, its encoding with the mirror, and its entity tag."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, cast

import msgspec

from wopr.protocol.agent_families import (
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
from wopr.protocol.documents import (
    UNSET,
    Closed,
    Document,
    Json,
    JsonObject,
    NonEmpty,
    Unset,
    encode,
)
from wopr.protocol.families import (
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

_Whole = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
ProtocolVersion = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$")]


class Limits(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """What the host enforces; the first three have the protocol's own defaults."""

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
    """Which software answers."""

    name: str | Unset = UNSET
    version: str | Unset = UNSET
    vendor: str | Unset = UNSET


class Otel(Document, frozen=True, kw_only=True):
    """How traces leave the host."""

    export_protocols: list[Literal["http/json", "http/protobuf", "grpc"]] | Unset = UNSET


class Observability(Document, frozen=True, kw_only=True):
    """What can be watched from outside."""

    otel: Otel | Unset = UNSET


class InterruptExtension(Document, frozen=True, kw_only=True):
    """Interrupt profiles, and how long an early event is kept."""

    profiles: list[str] | Unset = UNSET
    signed_callback_tokens: bool | Unset = UNSET
    external_event_retention_seconds: _Whole | Unset = UNSET
    # Where the meaning of this host's own interrupt kind is written down.
    vendor_kind_url: NonEmpty | Unset = UNSET
    # Whether events carry that kind itself, which their schemas exclude.
    literal_vendor_kind: bool | Unset = UNSET


class Extensions(Document, frozen=True, kw_only=True):
    """Additions that are not families of their own."""

    interrupts: InterruptExtension | Unset = UNSET


class DiscoveryRoot(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The base fields of the document, which no mirror repeats."""

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
    """Everything the host tells about itself; each family is optional."""

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


# The wire names of the families: what is in the document beyond its base fields.
FAMILIES: Final[tuple[str, ...]] = tuple(
    name
    for name in Capabilities.__struct_encode_fields__
    if name not in DiscoveryRoot.__struct_encode_fields__
)


def document(root: Capabilities) -> bytes:
    """Encode the document, with the same families once more under `capabilities`.

    Part of the published readers look at the root and part of them at the wrapper only; both
    are written from the one value, so they cannot disagree. RFC 0056 names feedback as a member of
    `host`, so it is there too. Raises `ValueError` for a list that
    names something twice: all lists of the document are sets.
    """
    fields: JsonObject = msgspec.to_builtins(root)
    _require_sets("$", fields)
    mirror = {name: fields[name] for name in FAMILIES if name in fields}
    if "feedback" in fields:
        fields["host"] = {"feedback": fields["feedback"]}
    return encode({**fields, "capabilities": mirror})


def _require_sets(path: str, value: Json) -> None:
    if isinstance(value, dict):
        for name, member in cast("JsonObject", value).items():
            _require_sets(f"{path}.{name}", member)
    elif isinstance(value, list):
        members = cast("list[object]", value)
        if any(member in members[:place] for place, member in enumerate(members)):
            raise ValueError(f"{path} names something twice")


def etag(body: bytes) -> str:
    """A strong entity tag that changes with any byte of the document."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'
