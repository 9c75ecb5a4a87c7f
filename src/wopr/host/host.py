"""The running host: all of its parts, and whether it is ready."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wopr.agents.registry import AgentRegistry
from wopr.agents.threads import abandoned_threads
from wopr.feedback.service import FeedbackServices
from wopr.host.peers import Cluster
from wopr.kahn.service import FleetServices
from wopr.nodes.registry import NodeRegistry
from wopr.process.metrics import Metrics
from wopr.process.settings import Settings
from wopr.process.sources import Sources
from wopr.process.tenant_slots import HeavyReads
from wopr.protocol.errors import Unavailable
from wopr.runs.advance import Advancer
from wopr.runs.commands import Commands
from wopr.runs.definitions.library import Library
from wopr.runs.event_bus import Bus
from wopr.runs.quotas import Quotas
from wopr.runs.run_reader import RunReader
from wopr.services.api_keys import Keyring
from wopr.services.audit.sink import AuditSink
from wopr.services.audit.trail import Audit
from wopr.services.webhooks.dispatcher import Dispatcher
from wopr.services.webhooks.subscriptions import Subscriptions
from wopr.store.port import Store
from wopr.store.port.peers import KnownProcess, Process

# A process without a heartbeat for this time will soon lose its leases.
MAX_SILENT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """All parts of a running host. HTTP, the console and the CLI work with it."""

    settings: Settings
    process: Process
    started_at: int
    store: Store
    registry: NodeRegistry
    library: Library
    agents: AgentRegistry
    keyring: Keyring
    commands: Commands
    run_reader: RunReader
    advancer: Advancer
    bus: Bus
    metrics: Metrics
    sources: Sources
    feedback: FeedbackServices
    audit: Audit
    # Copies the audit log to a sink; None when no sink is set.
    audit_sink: AuditSink | None
    subscriptions: Subscriptions
    dispatcher: Dispatcher
    fleet: FleetServices
    quotas: Quotas
    heavy_reads: HeavyReads
    discovery: bytes
    discovery_etag: str
    first_key: str | None
    # The first key signs interrupt tokens. All keys verify them.
    token_keys: tuple[bytes, ...]
    # Encrypts the session cookies of the web console.
    session_key: bytes
    # Capabilities that tenants switched off for conformance checks.
    capability_overlay: dict[str, dict[str, bool]] = field(
        default_factory=dict[str, dict[str, bool]]
    )
    # None when this process does not share its store.
    cluster: Cluster | None = None


async def check_ready(host: Host) -> None:
    """Raise `Unavailable` with the reason, unless this process can accept a write now."""
    if host.bus.is_closed:
        raise Unavailable("The process is stopping.")
    await host.store.check_ready()
    cluster = host.cluster
    if cluster is not None and cluster.membership.heartbeat_age > MAX_SILENT_SECONDS:
        raise Unavailable("The process could not send a heartbeat to the database for too long.")


async def known_processes(host: Host) -> list[KnownProcess]:
    """List the live processes, the oldest first."""
    if host.store.peers is not None:
        return await host.store.peers.processes()
    now = host.sources.now()
    return [KnownProcess(process=host.process, started_at=host.started_at, seen_at=now)]


async def update_gauges(host: Host) -> None:
    """Update the gauges."""
    metrics = host.metrics
    metrics.active_runs.set(len(host.advancer.active.runs))
    metrics.readers.set(host.bus.readers)
    metrics.abandoned_threads.set(abandoned_threads())
    metrics.set_open_runs(await host.store.open_run_counts())
    for quota, total in (await host.quotas.totals()).items():
        metrics.set_quota_use(quota, total.used, total.limit, total.exhausted)
    metrics.waiting_for_code.set(await host.store.waiting_for_code())
    peers = host.store.peers
    if peers is None:
        return
    facts = await peers.facts()
    metrics.queue_depth.set(facts.queue_depth)
    metrics.queue_age.set(facts.queue_age_seconds)
    metrics.held_runs.set(host.advancer.leases.count)
    metrics.lease_age.set(max(facts.lease_ages.values(), default=0.0))
