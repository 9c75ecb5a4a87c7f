"""Assembles the feedback services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wopr.feedback.annotations import AnnotationPublisher, Annotator
from wopr.feedback.export import Exports
from wopr.feedback.judges import JudgeRunStarter, Judges, JudgeTask
from wopr.feedback.queues import Queues
from wopr.feedback.snapshots import RunSnapshots
from wopr.feedback.summary import Summaries
from wopr.runs.commands import Commands
from wopr.runs.event_bus import Bus
from wopr.runs.journal import Journal
from wopr.runs.run_reader import RunReader
from wopr.services.audit.trail import AuditTrail


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackServices:
    """The feedback services of a host."""

    annotator: Annotator
    summaries: Summaries
    queues: Queues
    judges: Judges
    judge_task: JudgeTask
    exports: Exports


def create_feedback_services(
    journal: Journal,
    run_reader: RunReader,
    commands: Commands,
    bus: Bus,
    audit: AuditTrail,
    wake_fleet: Callable[[], None],
) -> FeedbackServices:
    """Create the feedback services. `wake_fleet` makes the fleet read new annotations."""
    store, now, new_id = journal.store, journal.now, journal.new_id
    snapshots = RunSnapshots(run_reader, store)
    annotator = Annotator(
        store,
        redactors=journal.redactors,
        snapshots=snapshots,
        publisher=AnnotationPublisher(audit, bus, wake_fleet),
        check_quota=journal.quotas.check_write,
        now=now,
        new_id=new_id,
    )
    judges = Judges(
        store,
        annotator,
        starter=JudgeRunStarter(commands, journal.library),
        snapshots=snapshots,
        now=now,
        new_id=new_id,
    )
    return FeedbackServices(
        annotator=annotator,
        summaries=Summaries(store, now),
        queues=Queues(store, annotator, redactors=journal.redactors, now=now, new_id=new_id),
        judges=judges,
        judge_task=JudgeTask(judges),
        exports=Exports(store, snapshots),
    )
