"""Counters and gauges for Prometheus, in a registry of the host's own."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from wopr.store.port import StoredEvent


class Metrics:
    """What the host counts. Labels hold names from closed sets, never ids or content."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._events = Counter("wopr_events_appended", "Events committed.", registry=self.registry)
        self._created = Counter("wopr_runs_created", "Runs created.", registry=self.registry)
        ended = Counter("wopr_runs_ended", "Runs ended.", ["status"], registry=self.registry)
        self._ended = {s: ended.labels(s) for s in ("completed", "failed", "cancelled")}
        self._requests = Histogram(
            "wopr_http_request_seconds",
            "Time to answer, streams excluded.",
            ["operation", "status"],
            registry=self.registry,
        )
        self._cells: dict[tuple[str, int], Histogram] = {}
        self.active_runs = Gauge(
            "wopr_runs_in_memory", "Runs that this process works on.", registry=self.registry
        )
        self.readers = Gauge("wopr_stream_readers", "Open event streams.", registry=self.registry)
        self.in_flight = Gauge("wopr_http_in_flight", "Requests under way.", registry=self.registry)
        self.stored_runs = Gauge(
            "wopr_runs_stored", "Runs in the store.", ["status"], registry=self.registry
        )

        sent = Counter(
            "wopr_webhook_deliveries", "Deliveries tried.", ["outcome"], registry=self.registry
        )
        self._sent = {True: sent.labels("delivered"), False: sent.labels("failed")}

    def delivered(self, was_taken: bool) -> None:
        """Count an attempt to deliver an event to a webhook."""
        self._sent[was_taken].inc()

    def appended(self, events: Sequence[StoredEvent]) -> None:
        """Count committed events."""
        self._events.inc(len(events))

    def created(self) -> None:
        """Count a created run."""
        self._created.inc()

    def ended(self, status: str) -> None:
        """Count a run that ended."""
        self._ended[status].inc()

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """Record how long an answer took."""
        cell = self._cells.get((operation, status))
        if cell is None:
            cell = self._cells[operation, status] = self._requests.labels(operation, str(status))
        cell.observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
