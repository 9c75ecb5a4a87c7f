"""Counters and gauges for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from wopr.protocol.runs import RUN_STATUSES, TERMINAL
from wopr.store.port import StoredEvent


class Metrics:
    """The metrics of a host. Labels have values from closed sets, never ids or content."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._events = Counter("wopr_events_appended", "Events committed.", registry=self.registry)
        self._created = Counter("wopr_runs_created", "Runs created.", registry=self.registry)
        ended = Counter("wopr_runs_ended", "Runs ended.", ["status"], registry=self.registry)
        self._ended = {s: ended.labels(s) for s in ("completed", "failed", "cancelled")}
        self._requests = Histogram(
            "wopr_http_request_seconds",
            "Time to respond, without streams.",
            ["operation", "status"],
            registry=self.registry,
        )
        self._children: dict[tuple[str, int], Histogram] = {}
        self.active_runs = Gauge(
            "wopr_runs_in_memory", "Runs in the memory of this process.", registry=self.registry
        )
        self.readers = Gauge("wopr_stream_readers", "Open event streams.", registry=self.registry)
        self.in_flight = Gauge(
            "wopr_http_in_flight", "Authenticated requests in progress.", registry=self.registry
        )
        self.connections = Gauge(
            "wopr_http_connections", "Open connections.", registry=self.registry
        )
        self._connections_refused = Counter(
            "wopr_http_connections_refused",
            "Connections that the host refused or closed, by the limit that they reached.",
            ["reason"],
            registry=self.registry,
        )
        self.streams = Gauge(
            "wopr_http_streams",
            "Open streams of all kinds, including waiting polls and live pages.",
            registry=self.registry,
        )
        opened = Gauge(
            "wopr_runs_open", "Runs that have not ended.", ["status"], registry=self.registry
        )
        self._open = {s: opened.labels(s) for s in RUN_STATUSES if s not in TERMINAL}
        # Sums over all tenants, because labels must not name tenants.
        self._quotas = tuple(
            Gauge(f"wopr_quota_{name}", meaning, ["quota"], registry=self.registry)
            for name, meaning in (
                ("used", "Use of a quota, all tenants together."),
                ("limit", "Sum of the limits of tenants that use a quota; +Inf without a limit."),
                ("tenants_full", "Tenants that have used up a quota."),
            )
        )
        self.waiting_for_code = Gauge(
            "wopr_runs_waiting_for_code",
            "Runs that wait for a process with the code of a node.",
            registry=self.registry,
        )

        sent = Counter(
            "wopr_webhook_deliveries", "Deliveries tried.", ["outcome"], registry=self.registry
        )
        self._sent = {True: sent.labels("delivered"), False: sent.labels("failed")}

        self.audit_sink_behind = Gauge(
            "wopr_audit_sink_behind",
            "Audit entries that the sink does not have yet, in the leading process.",
            registry=self.registry,
        )
        self._sink_failures = Counter(
            "wopr_audit_sink_failures",
            "Failed attempts to copy audit entries to the sink.",
            registry=self.registry,
        )

        self._rescued = Counter(
            "wopr_runs_rescued",
            "Runs of dead processes that were released.",
            registry=self.registry,
        )
        self.abandoned_threads = Gauge(
            "wopr_abandoned_threads",
            "Functions that still run after their time limit or after their run was cancelled.",
            registry=self.registry,
        )
        self._blocked = Counter(
            "wopr_event_loop_blocked",
            "Times that code blocked the event loop, by the type of the node.",
            ["node_type"],
            registry=self.registry,
        )
        self._appends = Histogram(
            "wopr_append_seconds",
            "Time to commit an append.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "wopr_queue_depth", "Wake-ups that are due and wait.", registry=self.registry
        )
        self.queue_age = Gauge(
            "wopr_queue_age_seconds",
            "Waiting time of the oldest wake-up that is due.",
            registry=self.registry,
        )
        self.held_runs = Gauge(
            "wopr_runs_held", "Runs with nodes in flight in this process.", registry=self.registry
        )
        self.lease_age = Gauge(
            "wopr_lease_age_seconds",
            "Longest time since the last heartbeat of a known process.",
            registry=self.registry,
        )

    def set_open_runs(self, counts: Mapping[str, int]) -> None:
        """Set the number of unfinished runs of each status."""
        for status, gauge in self._open.items():
            gauge.set(counts.get(status, 0))

    def set_quota_use(self, quota: str, used: int, limit: float, full: int) -> None:
        """Set the use of a quota, the sum of its limits, and the number of tenants at the limit."""
        for gauge, value in zip(self._quotas, (used, limit, full), strict=True):
            gauge.labels(quota).set(value)

    def count_audit_sink_failure(self) -> None:
        """Count a failed attempt to copy audit entries."""
        self._sink_failures.inc()

    def count_rescued(self, count: int) -> None:
        """Count runs that were released from a dead process."""
        self._rescued.inc(count)

    def count_blocked_loop(self, node_type: str) -> None:
        """Count a blocked event loop. Safe to call from any thread."""
        self._blocked.labels(node_type).inc()

    def count_refused_connection(self, reason: str) -> None:
        """Count a connection that reached a limit."""
        self._connections_refused.labels(reason).inc()

    def record_append(self, seconds: float) -> None:
        """Record how long an append took."""
        self._appends.observe(seconds)

    def count_delivery(self, is_delivered: bool) -> None:
        """Count an attempt to deliver an event to a webhook."""
        self._sent[is_delivered].inc()

    def count_events(self, events: Sequence[StoredEvent]) -> None:
        """Count committed events."""
        self._events.inc(len(events))

    def count_created(self) -> None:
        """Count a created run."""
        self._created.inc()

    def count_ended(self, status: str) -> None:
        """Count a run that ended."""
        self._ended[status].inc()

    def record_response(self, operation: str, status: int, seconds: float) -> None:
        """Record how long a response took."""
        child = self._children.get((operation, status))
        if child is None:
            child = self._children[operation, status] = self._requests.labels(
                operation, str(status)
            )
        child.observe(seconds)

    def text(self) -> bytes:
        """Return the metrics in the exposition format."""
        return generate_latest(self.registry)
