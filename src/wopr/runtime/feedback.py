"""Feedback in this host: its parts put together, and who hears of an annotation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from wopr.feedback.annotations import Annotator
from wopr.feedback.annotations import Author as Author
from wopr.feedback.export import Exports
from wopr.feedback.judges import Judges
from wopr.feedback.queues import Queues
from wopr.feedback.summary import Summaries
from wopr.protocol.annotations import Annotation
from wopr.protocol.documents import JsonObject, Unset, encode
from wopr.protocol.errors import Unavailable
from wopr.protocol.references import MARK, referred_bytes
from wopr.runtime.audit import Entries
from wopr.runtime.bus import Bus, Notice
from wopr.runtime.commands import Commands
from wopr.runtime.heavy_reads import off_loop
from wopr.runtime.journal import Journal
from wopr.runtime.judging import JudgeRuns, JudgeWork
from wopr.runtime.readers import Readers
from wopr.runtime.spilling import Spilled
from wopr.store.port import RunRow
from wopr.store.port.audit import AuditDraft

ANNOTATED = "run.annotated"
ANNOTATE = "run.annotate"
# A run with more bytes, those of its large values included, keeps its references in exports.
MOST_WHOLE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What people and agents can say of runs, and what is made of it."""

    annotator: Annotator
    summaries: Summaries
    queues: Queues
    judges: Judges
    judge_work: JudgeWork
    exports: Exports


class Announcer:
    """Writes the audit's entry of an annotation, and tells whoever reads the run now."""

    def __init__(self, audit: Entries, bus: Bus, journal: Journal) -> None:
        self._audit = audit
        self._bus = bus
        self._journal = journal

    def audit(self, tenant: str, annotation: Annotation, credential: str = "") -> AuditDraft:
        """The audit entry that is stored with the annotation."""
        return annotation_audit(self._audit, tenant, annotation, credential)

    def stored(self, annotation: Annotation) -> None:
        """Send the annotation to live readers of its run, and let the fleet hear of it."""
        announce(self._bus, annotation.target.run_id, annotation.annotation_id, encode(annotation))
        self._journal.has_lines()


def annotation_audit(
    audit: Entries, tenant: str, annotation: Annotation, credential: str = ""
) -> AuditDraft:
    """Say who annotated what and how, without the text of the annotation.

    The entry of an annotation in the name of another actor names both: the credential that was
    used is its principal, and the actor is among its facts.
    """
    target = annotation.target
    facts: JsonObject = {
        "annotationId": annotation.annotation_id,
        "signalKind": annotation.signal.kind,
    }
    for name, value in (("eventId", target.event_id), ("nodeId", target.node_id)):
        if not isinstance(value, Unset):
            facts[name] = value
    actor = annotation.actor.principal_ref
    if credential:
        facts["actor"] = actor
    return audit.draft(tenant, credential or actor, ANNOTATE, target.run_id, **facts)


def announce(bus: Bus, run_id: str, annotation_id: str, annotation: bytes) -> None:
    """Tell whoever reads the run now of an annotation, however often this process hears of it."""
    bus.notify(run_id, Notice(ANNOTATED, annotation), annotation_id)


def feedback_of(
    journal: Journal, readers: Readers, commands: Commands, bus: Bus, audit: Entries
) -> Feedback:
    """Put the parts together."""

    async def snapshot(tenant: str, run: RunRow) -> bytes:
        if run.snapshot is not None:
            return run.snapshot
        return (await readers.snapshot_in_turn(tenant, run.run_id, must=True)).body

    async def whole_snapshot(tenant: str, run: RunRow) -> bytes:
        body = await snapshot(tenant, run)
        if MARK not in body:
            return body
        async with readers.heavy_reads.turn(tenant, must=True):
            found: JsonObject = await off_loop(len(body), partial(msgspec.json.decode, body))
            size = len(body) + referred_bytes(found)
            if size > MOST_WHOLE_BYTES:
                return body
            try:
                whole = await Spilled().resolve(journal.store, tenant, run.run_id, found)
            except Unavailable:
                # Data of an observed run is not escaped: it may look like a reference.
                return body
            return await off_loop(size, partial(encode, whole))

    store, now, new_id = journal.store, journal.now, journal.new_id
    annotator = Annotator(
        store,
        redactors=journal.redactors,
        snapshot=snapshot,
        listener=Announcer(audit, bus, journal),
        check_quota=journal.quotas.check_write,
        now=now,
        new_id=new_id,
    )
    judges = Judges(
        store,
        annotator,
        start=JudgeRuns(commands, journal.library),
        snapshot=whole_snapshot,
        now=now,
        new_id=new_id,
    )
    return Feedback(
        annotator=annotator,
        summaries=Summaries(store, now),
        queues=Queues(store, annotator, redactors=journal.redactors, now=now, new_id=new_id),
        judges=judges,
        judge_work=JudgeWork(judges),
        exports=Exports(store, whole_snapshot),
    )
