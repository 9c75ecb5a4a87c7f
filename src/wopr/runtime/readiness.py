"""Whether this process can take work now, and how it is doing."""

from __future__ import annotations

from wopr.nodes.threads import abandoned_threads
from wopr.protocol.errors import Unavailable
from wopr.runtime.host import Host
from wopr.store.port.peers import KnownProcess

# A process that gave no sign of life for so long is about to lose its runs.
MOST_SILENT_SECONDS = 5.0


async def check_ready(host: Host) -> None:
    """Raise `Unavailable`, with the reason, unless a write would be taken now by this process."""
    if host.bus.is_closed:
        raise Unavailable("the process is being stopped")
    await host.store.ready()
    sharing = host.sharing
    if sharing is not None and sharing.membership.silent_seconds > MOST_SILENT_SECONDS:
        raise Unavailable("the process has given no sign of life for too long")


async def known_processes(host: Host) -> list[KnownProcess]:
    """The live processes, the oldest first; only this one where a store has one process."""
    if host.store.peers is not None:
        return await host.store.peers.processes()
    now = host.sources.now()
    return [KnownProcess(process=host.process, started_at=host.started_at, seen_at=now)]


async def measure(host: Host) -> None:
    """Bring the gauges up to date."""
    metrics = host.metrics
    metrics.active_runs.set(len(host.advancer.runs))
    metrics.readers.set(host.bus.readers)
    metrics.abandoned_threads.set(abandoned_threads())
    metrics.opened(await host.store.open_counts())
    for quota, total in (await host.quotas.totals()).items():
        metrics.quota_use(quota, total.used, total.limit, total.full)
    metrics.waiting_for_code.set(await host.store.waiting_for_code())
    peers = host.store.peers
    if peers is None:
        return
    facts = await peers.facts()
    metrics.queue_depth.set(facts.queue_depth)
    metrics.queue_age.set(facts.queue_age_seconds)
    metrics.held_runs.set(host.advancer.holding.count)
    metrics.lease_age.set(max(facts.lease_ages.values(), default=0.0))
