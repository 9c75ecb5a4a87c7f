"""Assembles the services of the fleet."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from wopr.agents.registry import AgentRegistry
from wopr.feedback.annotations import annotation_audit_draft
from wopr.kahn.demo.tenant import Demo
from wopr.kahn.ingest import Ingest, LineWriter
from wopr.kahn.observed.run import LogRules
from wopr.kahn.observed.service import ObservedRuns
from wopr.kahn.otlp.service import TraceIntake, TraceProjection
from wopr.kahn.projection import Projection, ProjectorFactory, Transitions
from wopr.kahn.projection_queue import SHARED_SWEEP_SECONDS, SWEEP_SECONDS, ProjectionQueue
from wopr.kahn.retention import FleetRetention, RetentionPolicy, RetentionTask
from wopr.kahn.views import Views
from wopr.process.settings import Settings
from wopr.runs.event_bus import Bus
from wopr.runs.journal import Commit, Journal
from wopr.runs.quotas import PushLimit
from wopr.services.audit.trail import Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetServices:
    """The services of the fleet: ingest, views, retention and the background tasks."""

    ingest: Ingest
    views: Views
    pushes: PushLimit
    retention: RetentionTask
    demo: Demo
    transitions: Transitions
    observed: ObservedRuns
    # Projects the logs of the host's own runs onto lines.
    queue: ProjectionQueue
    # Stores exported traces; `traces` projects them onto lines later.
    trace_intake: TraceIntake
    traces: TraceProjection
    max_push_bytes: int


def create_fleet_services(
    journal: Journal,
    bus: Bus,
    settings: Settings,
    audit: Audit,
    agents: AgentRegistry,
) -> FleetServices:
    """Create the services of the fleet and connect them."""
    store, now, redactors = journal.store, journal.now, journal.redactors
    rules = LogRules(
        guard=journal.guard, redactors=redactors, audit=partial(annotation_audit_draft, audit)
    )
    sweep = SWEEP_SECONDS if store.peers is None else SHARED_SWEEP_SECONDS
    writer = LineWriter(store, now, redactors.text)
    projector_factory = ProjectorFactory(agents, settings.confidence_floor)
    projection = Projection(store, writer.put_own, projector_factory.new)
    queue = ProjectionQueue(store, projection.project, sweep_seconds=sweep)
    observed = ObservedRuns(
        store,
        bus,
        rules,
        now=now,
        new_id=journal.new_id,
        count_events=journal.quotas.count_events,
        project=projection.project,
        sweep_seconds=sweep,
    )
    policy = RetentionPolicy.of_days(settings.fleet_keep_days)
    ingest = Ingest(writer, observed, policy=policy)
    settle_ms = round(settings.otlp_settle_seconds * 1000)
    quiet_ms = round(settings.otlp_quiet_seconds * 1000)
    traces = TraceProjection(
        store, ingest, now, settle_ms=settle_ms, quiet_ms=quiet_ms, sweep_seconds=sweep
    )
    trace_intake = TraceIntake(
        store,
        now,
        redactors.text,
        settle_ms=settle_ms,
        keeps_content=settings.otel_content,
        wake=traces.wake,
    )

    def handle_commit(commit: Commit) -> None:
        if commit.writes[0].projects:
            queue.wake()

    journal.on_committed(handle_commit)
    return FleetServices(
        ingest=ingest,
        views=Views(store, now),
        pushes=PushLimit(settings.ingest_rate_limit, time.monotonic),
        retention=RetentionTask(FleetRetention(store, now, policy), audit),
        demo=Demo(store, ingest, now),
        transitions=Transitions(store, observed.catch_up, projector_factory),
        observed=observed,
        queue=queue,
        trace_intake=trace_intake,
        traces=traces,
        max_push_bytes=settings.max_push_bytes,
    )
