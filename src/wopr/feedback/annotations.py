"""Turn a request to annotate into a stored annotation: check its target, redact, keep, tell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from wopr.protocol.agents import agent_of_payload
from wopr.protocol.annotations import (
    Actor,
    Annotation,
    AnnotationCreate,
    Target,
    check_texts,
)
from wopr.protocol.documents import UNSET, Json, Unset, encode
from wopr.protocol.errors import Refused
from wopr.protocol.times import to_iso
from wopr.security.redact import Redactors
from wopr.store.port import SHARED, RememberedAnswer, RunLog, RunRow, StoredEvent, Workflows
from wopr.store.port.audit import AuditDraft
from wopr.store.port.feedback import AnnotationRow, Annotations, AnnotationSource

Remember: TypeAlias = Callable[[bytes], RememberedAnswer]
# The encoded RunSnapshot of a run, kept or made from its log.
SnapshotOf: TypeAlias = Callable[[str, RunRow], Awaitable[bytes]]


class Listener(Protocol):
    """Hears of every annotation, before it is stored and after."""

    def audit(self, tenant: str, annotation: Annotation, credential: str = "") -> AuditDraft:
        """The audit entry that is stored with the annotation.

        `credential` is the key that annotated in the name of the annotation's actor, if any.
        """
        ...

    def stored(self, annotation: Annotation) -> None:
        """Hear that an annotation is stored."""
        ...


class AnnotationStore(Annotations, RunLog, Workflows, Protocol):
    """What annotating needs of the store."""


class _Agent(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str = ""


class _Node(msgspec.Struct, rename="camel"):
    id: str
    agent: _Agent = _Agent()


class _Definition(msgspec.Struct, rename="camel"):
    """What is read of a definition: its nodes, and the agents that they are pinned to."""

    nodes: list[_Node] = []


class _Event(msgspec.Struct, rename="camel"):
    """What is read of an event: its node, and the payload that may name an agent."""

    node_id: str = ""
    payload: Json = None


class _Snapshot(msgspec.Struct, rename="camel"):
    """What is read of a snapshot: the run's agent, and its nodes where no definition has them."""

    agent: _Agent = _Agent()
    node_states: dict[str, Json] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who annotates. `credential` is the key that annotates in the name of another actor."""

    actor: str
    credential: str = ""
    source: AnnotationSource = "person"


@dataclass(frozen=True, slots=True)
class Prepared:
    """An annotation that may be stored, and the row that stores it."""

    annotation: Annotation
    row: AnnotationRow


class Annotator:
    """Annotates runs for the caller, for the agent of a judge, or for an actor that was named."""

    def __init__(
        self,
        store: AnnotationStore,
        *,
        redactors: Redactors,
        snapshot: SnapshotOf,
        listener: Listener,
        check_quota: Callable[[str], Awaitable[None]],
        now: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._redactors = redactors
        self._snapshot = snapshot
        self._now = now
        self._new_id = new_id
        self.listener = listener
        # Raises `QuotaExceeded` for a tenant that may store no more.
        self.check_quota = check_quota

    async def annotate(
        self,
        tenant: str,
        run: RunRow,
        author: Author,
        request: AnnotationCreate,
        remember: Remember | None = None,
    ) -> bytes:
        """Store an annotation and return its encoded document."""
        await self.check_quota(tenant)
        prepared = await self.prepare(tenant, run, author, request)
        body = prepared.row.body
        await self._store.put_annotation(
            tenant, prepared.row, remember(body) if remember is not None else None
        )
        self.listener.stored(prepared.annotation)
        return body

    async def prepare(
        self, tenant: str, run: RunRow, author: Author, request: AnnotationCreate
    ) -> Prepared:
        """Check what a request points at and write the annotation, without storing it.

        Raises `Refused` for a target that the run does not have and for texts that are too long.
        """
        check_texts(request)
        node_id, agent_id = await self._place(tenant, run, request)
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
            actor=Actor(principal_ref=self.redacted(tenant, author.actor)),
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
            audit=self.listener.audit(tenant, annotation, author.credential),
        )
        return Prepared(annotation, row)

    def redacted(self, tenant: str, text: str) -> str:
        """Return a tenant's text without its secrets."""
        return self._redactors.text(tenant, text)

    def _text(self, tenant: str, text: str | Unset) -> str | Unset:
        return UNSET if isinstance(text, Unset) else self.redacted(tenant, text)

    async def _place(self, tenant: str, run: RunRow, request: AnnotationCreate) -> tuple[str, str]:
        """The node and the agent that an annotation counts for; empty where there is none."""
        target = request.target
        node_id = agent_id = ""
        if not isinstance(target.event_id, Unset):
            event = _event(await self._event(tenant, run.run_id, target.event_id))
            node_id, agent_id = event.node_id, agent_of_payload(event.payload)
        pins = await self._pins(tenant, run) if node_id or target.node_id is not UNSET else {}
        if not isinstance(target.node_id, Unset):
            if target.node_id not in pins:
                raise Refused(
                    "target.nodeId names no node of the run's workflow", field="target.nodeId"
                )
            node_id = target.node_id
        agent_id = agent_id or pins.get(node_id, "")
        return node_id, agent_id or await self._agent_of_run(tenant, run)

    async def _event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent:
        found = await self._store.event(tenant, run_id, event_id)
        if found is None:
            raise Refused("target.eventId names no event of this run", field="target.eventId")
        return found

    async def _pins(self, tenant: str, run: RunRow) -> dict[str, str]:
        """Every node of the run's workflow, with the agent that it is pinned to or nothing."""
        for owner in (tenant, SHARED):
            row = await self._store.workflow(owner, run.workflow_id, run.workflow_version)
            if row is not None:
                definition = msgspec.json.decode(row.body, type=_Definition)
                return {node.id: node.agent.agent_id for node in definition.nodes}
        # An observed run has no workflow here.
        return dict.fromkeys((await self._shown(tenant, run)).node_states, "")

    async def _agent_of_run(self, tenant: str, run: RunRow) -> str:
        return (await self._shown(tenant, run)).agent.agent_id

    async def _shown(self, tenant: str, run: RunRow) -> _Snapshot:
        return msgspec.json.decode(await self._snapshot(tenant, run), type=_Snapshot)


def _event(stored: StoredEvent) -> _Event:
    return msgspec.json.decode(stored.body, type=_Event)
