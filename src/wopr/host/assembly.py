"""Assembles the parts of a host, starts them and stops them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import anyio
import msgspec
import structlog

from wopr.agents.memory import AgentMemory
from wopr.agents.models.port import Models
from wopr.agents.registry import AgentRegistry
from wopr.agents.tools.permissions import ToolLimits
from wopr.agents.tools.toolbox import Toolbox
from wopr.cluster.leases import LeaseLimits, Leases
from wopr.cluster.local_wakeups import LocalWakeups
from wopr.cluster.membership import LeaderTask, Membership
from wopr.cluster.queued_wakeups import QueuedWakeups
from wopr.cluster.wakeups import WakeupSource
from wopr.feedback.service import create_feedback_services
from wopr.host.agents import (
    AgentResources,
    confidence_floor,
    llm_services,
    model_check,
    open_agent_resources,
    provider_names,
)
from wopr.host.definitions import install_agents, register_workflows
from wopr.host.host import Host
from wopr.host.peers import Caches, Cluster, PeerListener, describe_process, require_same_key
from wopr.kahn.service import create_fleet_services
from wopr.nodes.builtin import builtin_registry
from wopr.nodes.conformance import PROBE_SECRET, PROBE_SECRET_ID
from wopr.nodes.registry import NodeRegistry
from wopr.process.egress import Egress
from wopr.process.keys import TENANT_KEY, content_cipher, load_host_key
from wopr.process.logs import redact_logs
from wopr.process.metrics import Metrics
from wopr.process.settings import Settings
from wopr.process.sources import Sources
from wopr.process.subprocess_pool import SubprocessPool
from wopr.process.tenant_slots import HeavyReads
from wopr.protocol.discovery.document import encode_discovery, etag
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError
from wopr.runs.advance import Advancer
from wopr.runs.append import DataLimits, Guard
from wopr.runs.commands import Commands
from wopr.runs.definitions.checks import DefinitionLimits
from wopr.runs.definitions.library import Library
from wopr.runs.event_bus import Bus
from wopr.runs.execution.agent_context import AgentServices
from wopr.runs.execution.tool_calls import ToolPolicy
from wopr.runs.execution.watchdog import Watchdog
from wopr.runs.journal import FIRST_EVENTS, Journal
from wopr.runs.quotas import Quotas
from wopr.runs.run_reader import RunReader
from wopr.security.api_keys import parse_env_keys
from wopr.security.audit_chain import CheckpointKey
from wopr.security.encryption import Seal, derive
from wopr.security.redact import Redactors
from wopr.services.api_keys import Keyring
from wopr.services.audit.sink import create_audit_sink
from wopr.services.audit.trail import Audit, audit_key
from wopr.services.discovery.document import MAX_RESPONSE_BODY_BYTES, capabilities
from wopr.services.retention import Retention
from wopr.services.telemetry.tracing import Tracing
from wopr.services.webhooks.delivery import MAX_RESPONSE_BYTES as MAX_RECEIPT_BYTES
from wopr.services.webhooks.delivery import DeliveryPolicy, WebhookClient
from wopr.services.webhooks.dispatcher import Dispatcher
from wopr.services.webhooks.subscriptions import Subscriptions
from wopr.store.open import serving_store
from wopr.store.port import Store
from wopr.store.port.peers import Peers

_OWNER_LOGIN_WARNING = (
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
    """Open the store, continue unfinished runs, and stop everything cleanly at the end.

    `models` replace the configured providers; `toolbox` has the tools that agents may call. If
    several processes share the store, the leader runs the tasks that only one process may run, and
    a process that stops releases its runs for the others.
    """
    sources = sources or Sources()
    registry = registry or builtin_registry(with_conformance=settings.conformance)
    egress = _egress(
        settings, sources, MAX_RESPONSE_BODY_BYTES, 30, settings.max_outgoing_per_tenant
    )
    # Webhooks have separate connections and lookups, so that they do not delay nodes.
    webhook_egress = _egress(
        settings, sources, MAX_RECEIPT_BYTES, 5, settings.max_deliveries_per_tenant
    )
    pool = SubprocessPool(settings.pool_limits)
    secret = load_host_key(settings.data_dir, os.environ)
    options = replace(
        settings.store_options,
        tenant_key=derive(secret, TENANT_KEY),
        cipher=content_cipher(os.environ),
    )
    redactors = Redactors()
    async with (
        serving_store(settings.database_url, options) as store,
        egress,
        webhook_egress,
        open_agent_resources(settings, models, toolbox, pool) as resources,
        aclosing(pool),
    ):
        # Traces go to the operator, so the secrets of all tenants are masked.
        tracing = Tracing.from_environment(
            store, redactors.process, with_content=settings.otel_content
        )
        # Outside the task group, which would wrap an error in a group.
        host = await _assemble(
            settings,
            sources,
            registry,
            store,
            egress,
            webhook_egress,
            tracing,
            resources,
            pool,
            secret,
            redactors,
        )
        if store.peers is not None:
            if store.peers.owns_tables:
                log.warning(_OWNER_LOGIN_WARNING)
            cluster = _cluster(host, store.peers)
            await cluster.membership.join()
            host = replace(host, cluster=cluster)
        try:
            async with anyio.create_task_group() as tasks:
                host.advancer.wakeups.start(tasks)
                tasks.start_soon(tracing.task.run)
                tasks.start_soon(host.quotas.task.run)
                watchdog = Watchdog(
                    host.metrics,
                    settings.blocked_loop_seconds,
                    lambda tenant, run_id, change: store.count_freeze(
                        tenant, run_id, change, sources.now()
                    ),
                )
                tasks.start_soon(watchdog.run_forever)
                if host.cluster is None:
                    for task in _leader_tasks(host):
                        tasks.start_soon(task)
                else:
                    host.cluster.start(tasks)
                try:
                    yield host
                finally:
                    with anyio.CancelScope(shield=True):
                        if host.cluster is None:
                            await host.advancer.wakeups.source.stop()
                        else:
                            await host.cluster.membership.leave(settings.drain_seconds)
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
    webhook_egress: Egress,
    tracing: Tracing,
    resources: AgentResources,
    subprocesses: SubprocessPool,
    secret: bytes,
    redactors: Redactors,
) -> Host:
    # Logs go to the operator, so the secrets of all tenants are masked.
    redact_logs(redactors.process)
    if store.peers is not None:
        await require_same_key(store.peers, secret)
    if settings.conformance:
        redactors.register_operator(PROBE_SECRET, PROBE_SECRET_ID)
    for password in settings.database_passwords:
        redactors.process.register("", password)
    configured = parse_env_keys(settings.api_keys)
    for key in configured:
        # Only for its own tenant: another tenant could otherwise test guesses of the key.
        redactors.register(key.tenant, "api-key", key.key)
    if settings.audit_sink_secret:
        redactors.register_operator(settings.audit_sink_secret)
    process = describe_process(settings, registry, resources.toolbox)
    signing = (
        audit_key(settings.data_dir)
        if store.peers is None
        else CheckpointKey(derive(secret, "audit-checkpoint"))
    )
    audit = Audit(store, signing, sources.now, redactors)
    quotas = Quotas(store, settings, sources.now, time.monotonic)
    await quotas.read()
    discovery = partial(
        capabilities,
        settings,
        registry,
        audit_key=audit.public_key,
        providers=provider_names(settings, resources),
    )
    # The document lists the fixtures, which are known only after their registration.
    advertised: JsonObject = msgspec.json.decode(encode_discovery(discovery(fixtures=())))
    guard = Guard(advertised)
    agents = AgentRegistry(
        store,
        sources.now,
        advertised,
        settings.schema_limits,
        settings.max_agent_bytes,
        check_large=subprocesses.check_large,
        check_quota=partial(quotas.check_write, counted="agents"),
    )
    library = Library(
        store,
        registry,
        sources.now,
        model_check(settings, resources),
        limits=DefinitionLimits.of(settings),
        subprocesses=subprocesses,
        agents=agents,
        check_quota=partial(quotas.check_write, counted="workflowVersions"),
    )
    discovery_body = encode_discovery(
        discovery(fixtures=await register_workflows(settings, library))
    )
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
    policy = DeliveryPolicy.of(settings)
    webhook_client = WebhookClient(webhook_egress, policy.timeout_seconds)
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
        add_deliveries=subscriptions.add_deliveries,
    )
    journal.on_committed(subscriptions.handle_commit)
    journal.on_committed(tracing.handle_commit)
    leases = _leases(settings, process.name if store.peers else "")
    advancer = Advancer(
        journal,
        source=_wakeup_source(settings, store, leases, sources.now),
        leases=leases,
        egress=egress,
        metrics=metrics,
        provides=frozenset(),
        services=AgentServices(
            agents=agents,
            memory=AgentMemory(store, sources.now, quotas.check_write),
            floor=confidence_floor(settings),
            tools=ToolPolicy(limits=_tool_limits(settings, sources), scopes=keyring.scopes),
            verbosity=settings.reasoning_verbosity,  # type: ignore[arg-type]  # a checked setting
            token_limit=settings.reasoning_token_limit,
            streams_reasoning=guard.advertises("agent.reasoning.delta"),
            suppresses_escalation=settings.suppress_escalation,
            llm=llm_services(settings, resources, store, secret, audit, redactors, quotas),
        ),
    )
    commands = Commands(advancer, metrics, audit.draft)
    fleet = create_fleet_services(journal, bus, settings, audit, agents)
    heavy_reads = HeavyReads(settings.max_heavy_reads)
    run_reader = RunReader(advancer, bus, fleet.observed.catch_up, heavy_reads)
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
        run_reader=run_reader,
        advancer=advancer,
        bus=bus,
        metrics=metrics,
        sources=sources,
        feedback=create_feedback_services(
            journal, run_reader, commands, bus, audit, fleet.queue.wake
        ),
        audit=audit,
        audit_sink=create_audit_sink(settings, store, webhook_client, metrics, sources.now),
        subscriptions=subscriptions,
        dispatcher=Dispatcher(
            store,
            subscriptions,
            webhook_client,
            policy=policy,
            deliveries_per_tenant=settings.max_deliveries_per_tenant,
            metrics=metrics,
            now=sources.now,
        ),
        fleet=fleet,
        quotas=quotas,
        heavy_reads=heavy_reads,
        discovery=discovery_body,
        discovery_etag=etag(discovery_body),
        first_key=first_key,
        token_keys=(derive(secret, "interrupt-token"),),
        session_key=derive(secret, "console-session"),
    )


def _leases(settings: Settings, process: str) -> Leases:
    return Leases(
        process,
        executes=settings.executes or not process,
        limits=LeaseLimits(
            runs=settings.max_held_runs,
            runs_per_tenant=settings.max_held_runs_per_tenant,
            memory_bytes=settings.max_held_bytes,
        ),
    )


def _wakeup_source(
    settings: Settings, store: Store, leases: Leases, now: Callable[[], int]
) -> WakeupSource:
    if store.peers is None:
        return LocalWakeups(store, now)
    return QueuedWakeups(
        store.peers,
        leases,
        store,
        now,
        at_once=settings.wakeups_at_once,
        first_events=FIRST_EVENTS,
    )


def _cluster(host: Host, peers: Peers) -> Cluster:
    advancer = host.advancer
    return Cluster(
        membership=Membership(
            peers,
            advancer.leases,
            host.metrics,
            process=host.process,
            leader_tasks=_leader_tasks(host),
            now=host.sources.now,
            wake=advancer.wakeups.advance_soon,
            is_active=advancer.active.runs.__contains__,
            drop_runs=partial(_drop_leased_runs, advancer),
            stop_wakeups=advancer.wakeups.source.stop,
        ),
        listener=PeerListener(
            peers,
            advancer,
            host.bus,
            Caches(
                library=host.library,
                agents=host.agents,
                keyring=host.keyring,
                subscriptions=host.subscriptions,
            ),
            host.feedback.judge_task,
        ),
    )


def _drop_leased_runs(advancer: Advancer) -> None:
    for run in list(advancer.active.runs.values()):
        if run.is_held:
            advancer.active.drop(run)
            advancer.active.release(run)


def _leader_tasks(host: Host) -> tuple[LeaderTask, ...]:
    """List the tasks that one process runs for all processes that share a store."""
    retention = Retention(
        host.store, host.audit, host.sources.now, retention_days=host.settings.retention_days
    )
    sink = () if host.audit_sink is None else (host.audit_sink.run,)
    return (
        *sink,
        retention.task.run,
        host.dispatcher.run,
        host.audit.checkpoints.run,
        host.feedback.judge_task.task.run,
        host.fleet.queue.task.run,
        host.fleet.observed.queue.task.run,
        host.fleet.retention.task.run,
        host.fleet.traces.task.run,
    )


async def _first_key(settings: Settings, store: Store, keyring: Keyring) -> str | None:
    """Create the first key if there are no keys. Only one of several processes creates it."""
    if not settings.serves:
        return None
    if store.peers is None:
        return await keyring.first_key()
    async with store.peers.exclusive("first key"):
        return await keyring.first_key()


def _egress(
    settings: Settings, sources: Sources, max_response_bytes: int, seconds: float, per_tenant: int
) -> Egress:
    return Egress(
        allow_private=settings.allow_private_destinations,
        max_response_bytes=max_response_bytes,
        timeout=seconds,
        requests_per_tenant=per_tenant,
        lookups_per_tenant=settings.max_lookups_per_tenant,
        resolver=sources.resolver,
    )


def _tool_limits(settings: Settings, sources: Sources) -> ToolLimits:
    rate = settings.tool_rate_limit
    return ToolLimits(rate, lambda: sources.now() / 1000, burst=max(1, math.ceil(rate)))
