"""The host: every part of the runtime, put together and started."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import anyio
import httpx
import msgspec

from wopr.agents.memory import Memory
from wopr.agents.registry import Agents
from wopr.agents.toolbox import Toolbox
from wopr.agents.tools import ToolLimits
from wopr.nodes.builtin import builtin_registry
from wopr.nodes.identity_hooks import PROBE_SECRET, PROBE_SECRET_ID
from wopr.nodes.models import Models
from wopr.nodes.registry import NodeRegistry
from wopr.protocol.capabilities import document, etag
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError
from wopr.runtime.advance import Advancer
from wopr.runtime.advertise import MAX_RESPONSE_BODY_BYTES, capabilities
from wopr.runtime.advertise_agents import floor_of
from wopr.runtime.agent_call import AgentServices
from wopr.runtime.appender import Guard
from wopr.runtime.audit import Audit, audit_key
from wopr.runtime.bus import Bus
from wopr.runtime.commands import Commands
from wopr.runtime.courier import MAX_RESPONSE_BYTES as MAX_RECEIPT_BYTES
from wopr.runtime.courier import Courier
from wopr.runtime.duties import duties_of
from wopr.runtime.egress import guarded_client
from wopr.runtime.feedback import Feedback, feedback_of
from wopr.runtime.fleet import Fleet, fleet_of
from wopr.runtime.host_secret import host_secret
from wopr.runtime.installing import install_agents, register_workflows
from wopr.runtime.journal import Journal
from wopr.runtime.keyring import Keyring
from wopr.runtime.library import Library
from wopr.runtime.logs import redact_logs
from wopr.runtime.metrics import Metrics
from wopr.runtime.models import Offered, llm_services, model_fault_of, offered, providers_of
from wopr.runtime.readers import Readers
from wopr.runtime.settings import Settings
from wopr.runtime.sharing import (
    Sharing,
    agree_on_key,
    holding_of,
    process_of,
    sharing_of,
    source_of,
)
from wopr.runtime.sources import Sources
from wopr.runtime.subscriptions import Subscriptions
from wopr.runtime.tool_calls import ToolPolicy
from wopr.runtime.tracing import Tracing
from wopr.runtime.watchdog import Watchdog
from wopr.runtime.webhooks import Dispatcher
from wopr.security.audit_chain import CheckpointKey
from wopr.security.keys import parse_env_keys
from wopr.security.redact import Redactor
from wopr.security.seal import Seal, derive
from wopr.store.open import serving_store
from wopr.store.port import Store
from wopr.store.port.peers import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the HTTP layer talks to."""

    settings: Settings
    process: Process
    started_at: int
    store: Store
    registry: NodeRegistry
    library: Library
    agents: Agents
    keyring: Keyring
    commands: Commands
    readers: Readers
    advancer: Advancer
    bus: Bus
    metrics: Metrics
    sources: Sources
    feedback: Feedback
    audit: Audit
    subscriptions: Subscriptions
    dispatcher: Dispatcher
    fleet: Fleet
    discovery: bytes
    discovery_etag: str
    first_key: str | None
    # The first signs interrupt tokens; the others still verify them.
    token_keys: tuple[bytes, ...]
    # Seals the sessions of the web console.
    session_key: bytes
    # What tenants switched off for conformance checks, by capability.
    capability_overlay: dict[str, dict[str, bool]] = field(
        default_factory=dict[str, dict[str, bool]]
    )
    # This process among the others; None where it has the store to itself.
    sharing: Sharing | None = None


@asynccontextmanager
async def running_host(
    settings: Settings,
    sources: Sources | None = None,
    registry: NodeRegistry | None = None,
    *,
    models: Models | None = None,
    toolbox: Toolbox | None = None,
) -> AsyncGenerator[Host, None]:
    """Open the store, take up unfinished runs, and stop everything cleanly at the end.

    `models` take the place of the configured providers; `toolbox` holds what agents may call.
    Where others share the store, the duties that only one process has are those of the one that
    leads, and what is in flight at the end is given back to the others.
    """
    sources = sources or Sources()
    registry = registry or builtin_registry(with_conformance=settings.conformance)
    tracing = Tracing.from_environment(with_content=settings.otel_content)
    http = _client(settings, sources, MAX_RESPONSE_BODY_BYTES, 30)
    # Receivers of webhooks have connections of their own, so that they are in no node's way.
    hooks = _client(settings, sources, MAX_RECEIPT_BYTES, 5)
    llm = offered(settings, models, toolbox)
    stored = serving_store(settings.database_url, settings.store_options)
    async with stored as store, http, hooks, llm as parts:
        # Outside of the task group, so that what fails here is raised as it is.
        host = await _assemble(settings, sources, registry, store, http, hooks, tracing, parts)
        if store.peers is not None:
            sharing = sharing_of(host, store.peers)
            await sharing.membership.join()
            host = replace(host, sharing=sharing)
        try:
            async with anyio.create_task_group() as tasks:
                host.advancer.wakeups.start(tasks)
                tasks.start_soon(tracing.run_forever)
                watchdog = Watchdog(host.metrics, settings.blocked_loop_seconds)
                tasks.start_soon(watchdog.run_forever)
                if host.sharing is None:
                    for duty in duties_of(host):
                        tasks.start_soon(duty)
                else:
                    host.sharing.start(tasks)
                try:
                    yield host
                finally:
                    if host.sharing is not None:
                        with anyio.CancelScope(shield=True):
                            await host.sharing.membership.leave(settings.drain_seconds)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), suppress(WoprError):
                await host.audit.sign()
            with anyio.CancelScope(shield=True):
                await tracing.close()


async def _assemble(
    settings: Settings,
    sources: Sources,
    registry: NodeRegistry,
    store: Store,
    http: httpx.AsyncClient,
    hooks: httpx.AsyncClient,
    tracing: Tracing,
    parts: Offered,
) -> Host:
    redactor = Redactor()
    redact_logs(redactor)
    tracing.read_from(store, redactor)
    secret = host_secret(settings.data_dir, os.environ)
    if store.peers is not None:
        await agree_on_key(store.peers, secret)
    if settings.conformance:
        redactor.register(PROBE_SECRET_ID, PROBE_SECRET)
    configured = parse_env_keys(settings.api_keys)
    for key in configured:
        redactor.register("api-key", key.key)
    process = process_of(settings, registry, parts.toolbox)
    library = Library(store, registry, sources.now, model_fault_of(settings, parts))
    fixtures = await register_workflows(settings, library)
    signing = (
        audit_key(settings.data_dir)
        if store.peers is None
        else CheckpointKey(derive(secret, "audit-checkpoint"))
    )
    audit = Audit(store, signing, sources.now, redactor)
    discovery = document(
        capabilities(settings, registry, fixtures, audit.public_key, providers_of(settings, parts))
    )
    advertised: JsonObject = msgspec.json.decode(discovery)
    guard = Guard(advertised)
    agents = Agents(store, sources.now, advertised)
    library.agents = agents
    if settings.conformance:
        await install_agents(agents)
    keyring = Keyring(store, configured, sources.now)
    metrics = Metrics()
    bus = Bus(settings.max_readers_per_run)
    subscriptions = Subscriptions(
        store,
        Seal(derive(secret, "webhook-secret")),
        now=sources.now,
        allow_private=settings.allow_private_destinations,
    )
    await subscriptions.load()
    policy = settings.delivery_policy
    journal = Journal(
        store=store,
        library=library,
        bus=bus,
        guard=guard,
        redactor=redactor,
        seal=Seal(derive(secret, "run-vault")),
        limits=settings.limits,
        code_version=process.code_version,
        sources=sources,
        subscriptions=subscriptions,
    )
    holding = holding_of(settings, store.peers, process.name)
    advancer = Advancer(
        journal,
        source=source_of(settings, store, holding, sources.now),
        holding=holding,
        http=http,
        metrics=metrics,
        tracing=tracing,
        provides=frozenset(),
        services=AgentServices(
            agents=agents,
            floor=floor_of(settings),
            tools=ToolPolicy(limits=_tool_limits(settings, sources), scopes=keyring.scopes),
            verbosity=settings.reasoning_verbosity,  # type: ignore[arg-type]  # checked there
            token_limit=settings.reasoning_token_limit,
            streams_reasoning=guard.advertises("agent.reasoning.delta"),
            suppresses_escalation=settings.suppress_escalation,
            llm=llm_services(settings, parts, store, secret, audit, redactor),
        ),
        memory=Memory(store, sources.now),
    )
    commands = Commands(advancer, metrics, audit)
    fleet = fleet_of(journal, bus, settings, audit, agents)
    readers = Readers(advancer, bus, fleet.observers.catch_up)
    first_key = await _first_key(settings, store, keyring)
    if first_key is not None:
        await audit.record("default", "host", "key.create", "first key", role="admin")
    return Host(
        settings=settings,
        process=process,
        started_at=sources.now(),
        store=store,
        registry=registry,
        library=library,
        agents=agents,
        keyring=keyring,
        commands=commands,
        readers=readers,
        advancer=advancer,
        bus=bus,
        metrics=metrics,
        sources=sources,
        feedback=feedback_of(journal, readers, commands, bus, audit),
        audit=audit,
        subscriptions=subscriptions,
        dispatcher=Dispatcher(
            store,
            subscriptions,
            Courier(hooks, policy.timeout_seconds),
            policy=policy,
            metrics=metrics,
            now=sources.now,
        ),
        fleet=fleet,
        discovery=discovery,
        discovery_etag=etag(discovery),
        first_key=first_key,
        token_keys=(derive(secret, "interrupt-token"),),
        session_key=derive(secret, "console-session"),
    )


async def _first_key(settings: Settings, store: Store, keyring: Keyring) -> str | None:
    """The key of an empty keyring's first host; of several that start at once, one makes it."""
    if not settings.serves:
        return None
    if store.peers is None:
        return await keyring.first_key()
    async with store.peers.alone("first key"):
        return await keyring.first_key()


def _client(
    settings: Settings, sources: Sources, max_response_bytes: int, seconds: float
) -> httpx.AsyncClient:
    return guarded_client(
        allow_private=settings.allow_private_destinations,
        max_response_bytes=max_response_bytes,
        timeout=seconds,
        resolver=sources.resolver,
    )


def _tool_limits(settings: Settings, sources: Sources) -> ToolLimits:
    rate = settings.tool_rate_limit
    return ToolLimits(
        per_second=rate, burst=max(1, math.ceil(rate)), clock=lambda: sources.now() / 1000
    )
