"""One tool call of an MCP client: a run, followed to its end or to what it waits for."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
import msgspec

from wopr.http.mcp_caller import Caller
from wopr.http.mcp_forms import Form, form_of
from wopr.protocol.documents import Document, Json, JsonObject, Unset
from wopr.protocol.errors import Refused
from wopr.protocol.interrupts import AnswerTaken, ResolveInterrupt
from wopr.protocol.references import references_in, resolved
from wopr.protocol.runs import TERMINAL, CreateRun, RunAccepted, RunSnapshot
from wopr.runtime.entitled import may_answer
from wopr.runtime.inbox import InboxItem
from wopr.runtime.waits import Resolver
from wopr.security.seal import NONCE_BYTES, Seal, SealBroken, derive

# A child that begins to wait leaves no event with its parent, so the run is looked at this often.
LOOK_SECONDS: Final = 2
RESPOND: Final = "approvals:respond"

Tell = Callable[[str], Awaitable[None]]


class Place(Document, frozen=True, kw_only=True):
    """Where a call stands between two rounds: its run, what was asked, what was answered before."""

    run_id: str
    waiting_run_id: str = ""
    node_id: str = ""
    interrupt_id: str = ""
    answered: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that has ended."""

    snapshot: RunSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """A run that goes on without the client: it waits for somebody, or takes too long."""

    snapshot: RunSnapshot
    items: list[InboxItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """A run that waits for an answer which this caller may give."""

    form: Form
    place: Place


class _Inbox(msgspec.Struct, frozen=True, kw_only=True):
    items: list[InboxItem]


class _News(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a poll tells, as far as it matters here."""

    last_event_seq: int
    events: list[_NewEvent]


class _NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str


class Call:
    """A call of one workflow by one caller."""

    def __init__(self, caller: Caller, workflow_id: str, *, can_ask: bool, tell: Tell) -> None:
        self._caller = caller
        self._workflow_id = workflow_id
        self._can_ask = can_ask
        self._tell = tell

    async def start(self, inputs: JsonObject, *, key: str, traceparent: str) -> Place:
        """Start a run; the same key never starts a second one."""
        headers = {"idempotency-key": key, "traceparent": traceparent}
        accepted = await self._caller.call(
            "createRun",
            RunAccepted,
            body=CreateRun(workflow_id=self._workflow_id, inputs=inputs),
            headers={name: value for name, value in headers.items() if value},
        )
        return Place(run_id=accepted.run_id)

    async def answer(self, place: Place, content: JsonObject) -> Place:
        """Give a person's answer, by the same way and with the same rights as over the API."""
        items = await self._pending(place.waiting_run_id)
        asked = next((each for each in items if each.interrupt_id == place.interrupt_id), None)
        form = None if asked is None else form_of(asked)
        if form is None:
            # Somebody else was faster; the run shows what came of it.
            return place
        await self._caller.call(
            "answerInterrupt",
            AnswerTaken,
            path={"run_id": place.waiting_run_id, "node_id": place.node_id},
            query={"interruptId": place.interrupt_id},
            body=ResolveInterrupt(resume_value=form.read(content)),
        )
        answered = [*place.answered, place.interrupt_id]
        return msgspec.structs.replace(place, answered=answered)

    async def follow(self, place: Place) -> Ended | Waits | Asks:
        """Follow the run until it has ended, waits, or the client has waited long enough."""
        seconds = self._caller.host.settings.mcp_call_seconds
        last = -1
        with anyio.move_on_after(seconds or None):
            while True:
                last = await self._hear(place.run_id, last)
                found = await self._found(place)
                if found is not None:
                    return found
        return Waits(snapshot=await self._snapshot(place.run_id), items=[])

    async def _hear(self, run_id: str, last: int) -> int:
        """Wait a moment for news of the run, and tell the client of them."""
        news = await self._caller.call(
            "pollEvents",
            _News,
            path={"run_id": run_id},
            query={"lastSequence": str(last), "timeout": str(LOOK_SECONDS)},
        )
        await self._tell(news.events[-1].type if news.events else "still at work")
        return news.last_event_seq

    async def _found(self, place: Place) -> Ended | Waits | Asks | None:
        snapshot = await self._snapshot(place.run_id)
        if snapshot.status in TERMINAL:
            return Ended(snapshot=await self._whole(snapshot))
        if not snapshot.status.startswith("waiting-"):
            return None
        items = await self._waits(snapshot)
        if not items:
            # Answered in this very moment; the run is about to go on.
            return None
        return await self._question(place, items) or Waits(snapshot=snapshot, items=items)

    async def _snapshot(self, run_id: str) -> RunSnapshot:
        return await self._caller.call("getRun", RunSnapshot, path={"run_id": run_id})

    async def _whole(self, snapshot: RunSnapshot) -> RunSnapshot:
        """A snapshot with the values that its outputs refer to."""
        values: dict[str, Json] = {}
        for reference in references_in(snapshot.outputs):
            name: str = reference["artifactId"]
            if name not in values:
                path = {"run_id": snapshot.run_id, "artifact_id": name}
                values[name] = await self._caller.call("getArtifact", object, path=path)
        return msgspec.structs.replace(snapshot, outputs=resolved(snapshot.outputs, values))

    async def _waits(self, snapshot: RunSnapshot) -> list[InboxItem]:
        """What the run waits for, and what its children wait for."""
        children = [] if isinstance(snapshot.child_runs, Unset) else snapshot.child_runs
        waiting = [each.run_id for each in children if each.status.startswith("waiting-")]
        return [
            item for run_id in (snapshot.run_id, *waiting) for item in await self._pending(run_id)
        ]

    async def _pending(self, run_id: str) -> list[InboxItem]:
        page = await self._caller.call("listInterrupts", _Inbox, query={"runId": run_id})
        return page.items

    async def _question(self, place: Place, items: list[InboxItem]) -> Asks | None:
        """The first wait that this caller may answer and has not answered yet."""
        principal = await self._caller.principal()
        if not self._can_ask or not principal.may(RESPOND):
            return None
        by = Resolver(name=principal.key_id, role=principal.role, scopes=principal.scopes)
        for item in items:
            if item.interrupt_id in place.answered or not may_answer(item.kind, item.data, by):
                continue
            form = form_of(item)
            if form is not None:
                asked = msgspec.structs.replace(
                    place,
                    waiting_run_id=item.run_id,
                    node_id=item.node_id,
                    interrupt_id=item.interrupt_id,
                )
                return Asks(form=form, place=asked)
        return None


class Places:
    """Writes a place down so that only the caller it was given to can come back to it."""

    def __init__(self, key: bytes) -> None:
        self._seal = Seal(derive(key, "mcp-request-state"))

    def write(self, place: Place, *bound_to: str) -> str:
        """A place as an opaque text."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._seal.seal(
            msgspec.json.encode(place), nonce=nonce, context=_context(bound_to)
        )
        return base64.urlsafe_b64encode(sealed).decode()

    def read(self, state: str, *bound_to: str) -> Place:
        """A place from its text. Raises `Refused` for one that was given to somebody else."""
        try:
            sealed = base64.urlsafe_b64decode(state)
            opened = self._seal.open(sealed, context=_context(bound_to))
        except (ValueError, binascii.Error, SealBroken):
            raise Refused(
                "requestState is not one that this host gave to this caller", field="requestState"
            ) from None
        return msgspec.json.decode(opened, type=Place)


def _context(parts: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(parts)
