"""The host: every part of the runtime, put together and started."""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import msgspec
import structlog

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
from wopr.runtime.appender import DataLimits, Guard
from wopr.runtime.audit import Audit, audit_key
from wopr.runtime.audit_sink import AuditSink, audit_sink
from wopr.runtime.bus import Bus
from wopr.runtime.commands import Commands
from wopr.runtime.courier import MAX_RESPONSE_BYTES as MAX_RECEIPT_BYTES
from wopr.runtime.courier import Courier
from wopr.runtime.duties import duties_of
from wopr.runtime.egress import Egress
from wopr.runtime.encryption_keys import content_cipher
from wopr.runtime.feedback import Feedback, feedback_of
from wopr.runtime.fleet import Fleet, fleet_of
from wopr.runtime.heavy_reads import HeavyReads
from wopr.runtime.host_secret import TENANT_KEY, host_secret
from wopr.runtime.installing import install_agents, register_workflows
from wopr.runtime.journal import Journal
from wopr.runtime.keyring import Keyring
from wopr.runtime.library import Library
from wopr.runtime.logs import redact_logs
from wopr.runtime.metrics import Metrics
from wopr.runtime.models import Offered, llm_services, model_fault_of, offered, providers_of
from wopr.runtime.quotas import Quotas
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
from wopr.runtime.subprocess_pool import SubprocessPool
from wopr.runtime.subscriptions import Subscriptions
from wopr.runtime.tool_calls import ToolPolicy
from wopr.runtime.tracing import Tracing
from wopr.runtime.watchdog import Watchdog
from wopr.runtime.webhooks import Dispatcher
from wopr.security.audit_chain import CheckpointKey
from wopr.security.keys import parse_env_keys
from wopr.security.redact import Redactors
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
    # Copies the audit log elsewhere; None where no sink is set.
    audit_sink: AuditSink | None
    subscriptions: Subscriptions
    dispatcher: Dispatcher
    fleet: Fleet
    quotas: Quotas
    heavy_reads: HeavyReads
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


_WEAK_LOGIN = (
    "the database login owns the tables: SQL with this login can read every tenant; serve with a "
    "login that is only a member of wopr_service"
)

log = structlog.get_logger("wopr.host")


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
    egress = _egress(
        settings, sources, MAX_RESPONSE_BODY_BYTES, 30, settings.max_outgoing_per_tenant
    )
    # Webhooks have connections and lookups of their own, so that they do not delay nodes.
    hooks = _egress(settings, sources, MAX_RECEIPT_BYTES, 5, settings.max_deliveries_per_tenant)
    pool = SubprocessPool(settings.pool_limits)
    llm = offered(settings, models, toolbox, pool)
    secret = host_secret(settings.data_dir, os.environ)
    options = replace(
        settings.store_options,
        tenant_key=derive(secret, TENANT_KEY),
        cipher=content_cipher(os.environ),
    )
    stored = serving_store(settings.database_url, options)
    async with stored as store, egress, hooks, llm as parts, aclosing(pool):
        # Outside of the task group, so that what fails here is raised as it is.
        host = await _assemble(
            settings, sources, registry, store, egress, hooks, tracing, parts, pool, secret
        )
        if store.peers is not None:
            if store.peers.owns_tables:
                log.warning(_WEAK_LOGIN)
            sharing = sharing_of(host, store.peers)
            await sharing.membership.join()
            host = replace(host, sharing=sharing)
        try:
            async with anyio.create_task_group() as tasks:
                host.advancer.wakeups.start(tasks)
                tasks.start_soon(tracing.run_forever)
                tasks.start_soon(host.quotas.run_forever)
                watchdog = Watchdog(
                    host.metrics,
                    settings.blocked_loop_seconds,
                    lambda tenant, run_id, change: store.count_freeze(
                        tenant, run_id, change, sources.now()
                    ),
                )
                tasks.start_soon(watchdog.run_forever)
                if host.sharing is None:
                    for duty in duties_of(host):
                        tasks.start_soon(duty)
                else:
                    host.sharing.start(tasks)
                try:
                    yield host
                finally:
                    with anyio.CancelScope(shield=True):
                        if host.sharing is None:
                            await host.advancer.wakeups.source.stop()
                        else:
                            await host.sharing.membership.leave(settings.drain_seconds)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), suppress(WoprError):
                await host.audit.sign()
                if host.audit_sink is not None:
                    await host.audit_sink.finish()
            with anyio.CancelScope(shield=True):
                await tracing.close()


async def _assemble(
    settings: Settings,
    sources: Sources,
    registry: NodeRegistry,
    store: Store,
    egress: Egress,
    hooks: Egress,
    tracing: Tracing,
    parts: Offered,
    subprocesses: SubprocessPool,
    secret: bytes,
) -> Host:
    redactors = Redactors()
    # Logs and traces go to the operator: they mask the values of all tenants.
    redact_logs(redactors.process)
    tracing.read_from(store, redactors.process)
    if store.peers is not None:
        await agree_on_key(store.peers, secret)
    if settings.conformance:
        redactors.register_operator(PROBE_SECRET, PROBE_SECRET_ID)
    for password in settings.database_passwords:
        redactors.process.register("", password)
    configured = parse_env_keys(settings.api_keys)
    for key in configured:
        # For its own tenant only: another tenant could otherwise test guesses without signing in.
        redactors.register(key.tenant, "api-key", key.key)
    if settings.audit_sink_secret:
        redactors.register_operator(settings.audit_sink_secret)
    process = process_of(settings, registry, parts.toolbox)
    library = Library(
        store,
        registry,
        sources.now,
        model_fault_of(settings, parts),
        limits=settings.definition_limits,
        subprocesses=subprocesses,
    )
    fixtures = await register_workflows(settings, library)
    signing = (
        audit_key(settings.data_dir)
        if store.peers is None
        else CheckpointKey(derive(secret, "audit-checkpoint"))
    )
    audit = Audit(store, signing, sources.now, redactors)
    discovery = document(
        capabilities(settings, registry, fixtures, audit.public_key, providers_of(settings, parts))
    )
    advertised: JsonObject = msgspec.json.decode(discovery)
    guard = Guard(advertised)
    agents = Agents(
        store,
        sources.now,
        advertised,
        settings.schema_limits,
        settings.max_agent_bytes,
        library.check_large,
    )
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
    courier = Courier(hooks, policy.timeout_seconds)
    quotas = Quotas(store, settings, sources.now, time.monotonic)
    await quotas.read()
    library.check_quota = partial(quotas.check_write, counted="workflowVersions")
    agents.check_quota = partial(quotas.check_write, counted="agents")
    journal = Journal(
        store=store,
        library=library,
        bus=bus,
        guard=guard,
        redactors=redactors,
        seal=Seal(derive(secret, "run-vault")),
        limits=settings.limits,
        quotas=quotas,
        data_limits=DataLimits(
            value_bytes=settings.max_value_bytes,
            event_bytes=settings.max_event_bytes,
            run_bytes=settings.max_run_bytes,
            inline_bytes=settings.inline_value_bytes,
        ),
        code_version=process.code_version,
        sources=sources,
        subscriptions=subscriptions,
    )
    holding = holding_of(settings, store.peers, process.name)
    advancer = Advancer(
        journal,
        source=source_of(settings, store, holding, sources.now),
        holding=holding,
        egress=egress,
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
            llm=llm_services(settings, parts, store, secret, audit, redactors, quotas),
        ),
        memory=Memory(store, sources.now, quotas.check_write),
    )
    commands = Commands(advancer, metrics, audit)
    fleet = fleet_of(journal, bus, settings, audit, agents)
    heavy_reads = HeavyReads(settings.max_heavy_reads)
    readers = Readers(advancer, bus, fleet.observers.catch_up, heavy_reads)
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
        audit_sink=audit_sink(settings, store, courier, metrics, sources.now),
        subscriptions=subscriptions,
        dispatcher=Dispatcher(
            store,
            subscriptions,
            courier,
            policy=policy,
            deliveries_each=settings.max_deliveries_per_tenant,
            metrics=metrics,
            now=sources.now,
        ),
        fleet=fleet,
        quotas=quotas,
        heavy_reads=heavy_reads,
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


def _egress(
    settings: Settings, sources: Sources, max_response_bytes: int, seconds: float, each: int
) -> Egress:
    return Egress(
        allow_private=settings.allow_private_destinations,
        max_response_bytes=max_response_bytes,
        timeout=seconds,
        requests_each=each,
        lookups_each=settings.max_lookups_per_tenant,
        resolver=sources.resolver,
    )


def _tool_limits(settings: Settings, sources: Sources) -> ToolLimits:
    rate = settings.tool_rate_limit
    return ToolLimits(rate, lambda: sources.now() / 1000, burst=max(1, math.ceil(rate)))
