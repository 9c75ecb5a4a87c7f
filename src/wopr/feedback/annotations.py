"""Annotations of runs: check the target, redact, store, audit and publish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec.structs import replace

from wopr.feedback.snapshots import RunSnapshots
from wopr.protocol.agents import agent_of_payload
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode, to_iso
from wopr.protocol.errors import Refused
from wopr.protocol.resources.annotations import (
    Actor,
    Annotation,
    AnnotationCreate,
    Target,
    check_texts,
)
from wopr.runs.event_bus import Bus, Notice
from wopr.security.redact import Redactors
from wopr.services.audit.trail import AuditTrail
from wopr.store.port import SHARED, RecordBuilder, RunLog, RunRow, StoredEvent, Workflows
from wopr.store.port.audit import AuditDraft
from wopr.store.port.feedback import AnnotationRow, Annotations, AnnotationSource


class AnnotationStore(Annotations, RunLog, Workflows, Protocol):
    """The part of the store that annotations use."""


class _Agent(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str = ""


class _Node(msgspec.Struct, rename="camel"):
    id: str
    agent: _Agent = _Agent()


class _Definition(msgspec.Struct, rename="camel"):
    """The part of a definition that is read: its nodes, and the agents that they are pinned to."""

    nodes: list[_Node] = []


class _Event(msgspec.Struct, rename="camel"):
    """The part of an event that is read: its node, and the payload that may name an agent."""

    node_id: str = ""
    payload: Json = None


class _Snapshot(msgspec.Struct, rename="camel"):
    """The part of a snapshot that is read: the run's agent, and its nodes."""

    agent: _Agent = _Agent()
    node_states: dict[str, Json] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The author of an annotation. `credential` is a key that annotates on behalf of `actor`."""

    actor: str
    credential: str = ""
    source: AnnotationSource = "person"


@dataclass(frozen=True, slots=True)
class PreparedAnnotation:
    """A valid annotation that is not stored yet, and its row."""

    annotation: Annotation
    row: AnnotationRow


class Annotator:
    """Annotates runs for the caller, for the agent of a judge, or for a named actor."""

    def __init__(
        self,
        store: AnnotationStore,
        *,
        redactors: Redactors,
        snapshots: RunSnapshots,
        publisher: AnnotationPublisher,
        check_quota: Callable[[str], Awaitable[None]],
        now: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._redactors = redactors
        self._snapshots = snapshots
        self._now = now
        self._new_id = new_id
        self.publisher = publisher
        # Raises `QuotaExceeded` if the tenant has used up its storage quota.
        self.check_quota = check_quota

    async def annotate(
        self,
        tenant: str,
        run: RunRow,
        author: Author,
        request: AnnotationCreate,
        build_record: RecordBuilder | None = None,
    ) -> bytes:
        """Store an annotation and return its encoded document."""
        await self.check_quota(tenant)
        prepared = await self.prepare(tenant, run, author, request)
        body = prepared.row.body
        await self._store.put_annotation(
            tenant, prepared.row, build_record(body) if build_record is not None else None
        )
        self.publisher.publish(prepared.annotation)
        return body

    async def prepare(
        self, tenant: str, run: RunRow, author: Author, request: AnnotationCreate
    ) -> PreparedAnnotation:
        """Check the target of a request and return the annotation, without storing it.

        Raises `Refused` for a target that the run does not have and for texts that are too long.
        """
        check_texts(request)
        node_id, agent_id = await self._target_of(tenant, run, request)
        now = self._now()
        annotation = Annotation(
            annotation_id=self._new_id(),
            target=Target(
                run_id=run.run_id,
                event_id=request.target.event_id,
                node_id=request.target.node_id,
            ),
            signal=replace(
                request.signal,
                label=self._text(tenant, request.signal.label),
                correction=self._text(tenant, request.signal.correction),
            ),
            actor=Actor(principal_ref=self.redact(tenant, author.actor)),
            note=self._text(tenant, request.note),
            created_at=to_iso(now),
        )
        row = AnnotationRow(
            annotation_id=annotation.annotation_id,
            run_id=run.run_id,
            workflow_id=run.workflow_id,
            kind=annotation.signal.kind,
            rating=annotation.signal.stars,
            agent_id=agent_id,
            node_id=node_id,
            created_at=now,
            body=encode(annotation),
            source=author.source,
            label=annotation.signal.label or None,
            audit=self.publisher.audit_draft(tenant, annotation, author.credential),
        )
        return PreparedAnnotation(annotation, row)

    def redact(self, tenant: str, text: str) -> str:
        """Return a tenant's text without its secrets."""
        return self._redactors.text(tenant, text)

    def _text(self, tenant: str, text: str | Unset) -> str | Unset:
        return UNSET if isinstance(text, Unset) else self.redact(tenant, text)

    async def _target_of(
        self, tenant: str, run: RunRow, request: AnnotationCreate
    ) -> tuple[str, str]:
        """Return the node and the agent of an annotation; empty texts if it has none."""
        target = request.target
        node_id = agent_id = ""
        if not isinstance(target.event_id, Unset):
            event = _event(await self._event(tenant, run.run_id, target.event_id))
            node_id, agent_id = event.node_id, agent_of_payload(event.payload)
        pinned_agents = (
            await self._pinned_agents(tenant, run) if node_id or target.node_id is not UNSET else {}
        )
        if not isinstance(target.node_id, Unset):
            if target.node_id not in pinned_agents:
                raise Refused(
                    "target.nodeId is not a node of the run's workflow", field="target.nodeId"
                )
            node_id = target.node_id
        agent_id = agent_id or pinned_agents.get(node_id, "")
        return node_id, agent_id or await self._agent_of_run(tenant, run)

    async def _event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent:
        found = await self._store.event(tenant, run_id, event_id)
        if found is None:
            raise Refused("target.eventId is not an event of this run", field="target.eventId")
        return found

    async def _pinned_agents(self, tenant: str, run: RunRow) -> dict[str, str]:
        """Return the pinned agent of every node of the run's workflow; empty for other nodes."""
        for owner in (tenant, SHARED):
            row = await self._store.workflow(owner, run.workflow_id, run.workflow_version)
            if row is not None:
                definition = msgspec.json.decode(row.body, type=_Definition)
                return {node.id: node.agent.agent_id for node in definition.nodes}
        # An observed run has no stored workflow.
        return dict.fromkeys((await self._read_snapshot(tenant, run)).node_states, "")

    async def _agent_of_run(self, tenant: str, run: RunRow) -> str:
        return (await self._read_snapshot(tenant, run)).agent.agent_id

    async def _read_snapshot(self, tenant: str, run: RunRow) -> _Snapshot:
        return msgspec.json.decode(await self._snapshots.read(tenant, run), type=_Snapshot)


def _event(stored: StoredEvent) -> _Event:
    return msgspec.json.decode(stored.body, type=_Event)


# The event type of the notice to readers, and the action in the audit log.
ANNOTATED_EVENT = "run.annotated"
ANNOTATE_ACTION = "run.annotate"


class AnnotationPublisher:
    """Writes the audit entry of an annotation and notifies live readers of the run."""

    def __init__(self, audit: AuditTrail, bus: Bus, wake_fleet: Callable[[], None]) -> None:
        self._audit = audit
        self._bus = bus
        self._wake_fleet = wake_fleet

    def audit_draft(self, tenant: str, annotation: Annotation, credential: str = "") -> AuditDraft:
        """Return the audit entry that is stored with the annotation."""
        return annotation_audit_draft(self._audit, tenant, annotation, credential)

    def publish(self, annotation: Annotation) -> None:
        """Send the annotation to live readers of its run and to the fleet."""
        announce(self._bus, annotation.target.run_id, annotation.annotation_id, encode(annotation))
        self._wake_fleet()


def annotation_audit_draft(
    audit: AuditTrail, tenant: str, annotation: Annotation, credential: str = ""
) -> AuditDraft:
    """Return the audit entry of an annotation, without its text.

    For an annotation on behalf of another actor, the credential is the principal of the entry, and
    the actor is one of its facts.
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
    return audit.draft(tenant, credential or actor, ANNOTATE_ACTION, target.run_id, **facts)


def announce(bus: Bus, run_id: str, annotation_id: str, annotation: bytes) -> None:
    """Notify the readers of a run of an annotation. Repeated notifications are dropped."""
    bus.notify(run_id, Notice(ANNOTATED_EVENT, annotation), annotation_id)
