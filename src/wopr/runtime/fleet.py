"""The fleet in this host: its parts put together."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from wopr.agents.registry import Agents
from wopr.fleet.ingest import Ingest
from wopr.fleet.keeping import Keeping, KeepRule
from wopr.fleet.views import Views
from wopr.runtime.advertise_fleet import push_limit
from wopr.runtime.audit import Audit
from wopr.runtime.bus import Bus
from wopr.runtime.feedback import annotation_audit
from wopr.runtime.fleet_debts import SHARED_SWEEP_SECONDS, SWEEP_SECONDS, Debts
from wopr.runtime.fleet_demo import Demo
from wopr.runtime.fleet_keeper import Keeper
from wopr.runtime.journal import Journal
from wopr.runtime.observed_run import LogRules
from wopr.runtime.observing import Observers
from wopr.runtime.otlp import OtlpIntake, TraceTeller
from wopr.runtime.projecting import Projection
from wopr.runtime.quotas import PushLimit
from wopr.runtime.settings import Settings
from wopr.runtime.transitions import Projectors, Transitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What producers push into, what readers read, and what the host tells of its own runs."""

    ingest: Ingest
    views: Views
    pushes: PushLimit
    keeper: Keeper
    demo: Demo
    transitions: Transitions
    observers: Observers
    # What is owed to the fleet, and what the fleet owes to observed runs.
    telling: Debts
    showing: Debts
    # Traces that were exported here, and who tells the fleet of them.
    otlp: OtlpIntake
    traces: TraceTeller
    max_push_bytes: int


def fleet_of(
    journal: Journal,
    bus: Bus,
    settings: Settings,
    audit: Audit,
    agents: Agents,
) -> Fleet:
    """Put the parts together."""
    store, now, redactors = journal.store, journal.now, journal.redactors
    rules = LogRules(
        guard=journal.guard, redactors=redactors, audit=partial(annotation_audit, audit)
    )
    appended = journal.quotas.appended
    observers = Observers(store, bus, rules, now=now, new_id=journal.new_id, appended=appended)
    rule = KeepRule.of_days(settings.fleet_keep_days)
    ingest = Ingest(store, now, observers, redact=redactors.text, rule=rule)
    projectors = Projectors(agents, settings.confidence_floor)
    projection = Projection(store, ingest.put_own, projectors.new)
    sweep = SWEEP_SECONDS if store.peers is None else SHARED_SWEEP_SECONDS
    telling = Debts(store, projection.project, sweep_seconds=sweep)
    showing = Debts(store, observers.show, observed=True, sweep_seconds=sweep)
    settle_ms = round(settings.otlp_settle_seconds * 1000)
    otlp = OtlpIntake(
        store,
        now,
        redactors.text,
        settle_ms=settle_ms,
        keeps_content=settings.otel_content,
    )
    quiet_ms = round(settings.otlp_quiet_seconds * 1000)
    traces = TraceTeller(
        store, ingest, now, settle_ms=settle_ms, quiet_ms=quiet_ms, sweep_seconds=sweep
    )
    otlp.wake = traces.wake
    observers.project = projection.project
    observers.wake = showing.wake
    journal.has_lines = telling.wake
    return Fleet(
        ingest=ingest,
        views=Views(store, now),
        pushes=PushLimit(settings.ingest_rate_limit, time.monotonic),
        keeper=Keeper(Keeping(store, now, rule), audit),
        demo=Demo(store, ingest, now),
        transitions=Transitions(store, observers.catch_up, projectors),
        observers=observers,
        telling=telling,
        showing=showing,
        otlp=otlp,
        traces=traces,
        max_push_bytes=push_limit(settings),
    )
