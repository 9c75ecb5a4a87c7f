"""A tool call of an MCP client: start a run, follow it, answer its interrupts.

Each step is an operation of the API and is authenticated with the client's key. So a revoked key
ends the call, and a client cannot do anything that the API does not allow.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlencode

import anyio
import msgspec

from wopr.host.host import Host
from wopr.http.endpoint import AppState, Endpoint, authenticate
from wopr.http.limits import OpenStream
from wopr.http.mcp.elicitation import ElicitationForm, form_of
from wopr.http.request import TRANSPORT, Message, Request, Scope
from wopr.http.response import StreamResponse
from wopr.http.routes import events, interrupts, runs, workflows
from wopr.protocol.documents import Document, Json, JsonObject, Unset, encode
from wopr.protocol.errors import ErrorEnvelope, Refused, Unavailable, WoprError
from wopr.protocol.interrupts import AnswerTaken, InboxItem, ResolveInterrupt
from wopr.protocol.references import references_in, resolve_references
from wopr.protocol.runs import TERMINAL, CreateRun, RunAccepted, RunSnapshot
from wopr.runs.interrupts.approvals import Resolver, may_resolve
from wopr.security.api_keys import Principal
from wopr.security.encryption import NONCE_BYTES, Seal, SealBroken, derive
from wopr.security.redact import Redactor

T = TypeVar("T")
ReportProgress = Callable[[str], Awaitable[None]]

# A waiting child run causes no event in its parent, so the snapshot is read this often.
POLL_SECONDS: Final = 2
RESPOND_SCOPE: Final = "approvals:respond"
_OPERATIONS: Final = {
    operation.name: operation
    for module in (runs, events, interrupts, workflows)
    for operation in module.OPERATIONS
}


class ApiError(Exception):
    """An error response of the API, with its envelope."""

    def __init__(self, envelope: ErrorEnvelope) -> None:
        super().__init__(f"{envelope.error}: {envelope.message}")
        self.envelope = envelope


class ApiCalls(Endpoint):
    """Calls operations of the API with the key of one MCP request."""

    def __init__(self, state: AppState, scope: Scope) -> None:
        super().__init__(state, {})
        self._outer = scope

    @property
    def host(self) -> Host:
        """The host that is served. Raises `Unavailable` when it stops."""
        if self._state.host is None or self._state.stopping.is_set():
            raise Unavailable("the host is stopping")
        return self._state.host

    async def redactor(self) -> Redactor:
        """Return the redactor of the key's tenant.

        Without a valid key, the redactor masks only the operator's secrets and texts with the shape
        of a secret.
        """
        host = self._state.host
        if host is None:
            return Redactor()
        try:
            tenant = (await self.principal()).tenant
        except WoprError:
            tenant = ""
        return host.advancer.journal.redactors.of_tenant(tenant)

    @contextmanager
    def streaming(self, request: Request) -> Generator[OpenStream, None, None]:
        """Count no stream, because the MCP request is already counted as one."""
        request.leave()
        yield OpenStream(request.caller, self.credential(request), self.principal)

    async def principal(self) -> Principal:
        """Look up the principal of the key again."""
        return await authenticate(self._request("GET", {}, {}))

    async def call(
        self,
        name: str,
        kind: type[T],
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Call an operation by its name. Raises `ApiError` for an error response."""
        operation = _OPERATIONS[name]
        request = self._request(operation.method, query or {}, headers or {})
        request.path = dict(path or {})
        request.store_body(b"" if body is None else encode(body))
        try:
            response = await self._respond(request, operation)
        finally:
            request.close()
        if isinstance(response, StreamResponse):
            raise TypeError(f"the operation {name} returns a stream")
        if response.status >= 400:
            raise ApiError(msgspec.json.decode(response.body, type=ErrorEnvelope))
        return msgspec.json.decode(response.body, type=kind)

    def _request(
        self, method: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Request:
        kept = [pair for pair in self._outer["headers"] if pair[0] == b"authorization"]
        given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope: JsonObject = {
            "type": "http",
            "method": method,
            "path": self._outer["path"],
            "query_string": urlencode(query).encode(),
            "headers": [*kept, *given],
            TRANSPORT: "mcp",
        }
        return Request(self.host, scope, _receive_disconnect, self._state.request_limits)


async def _receive_disconnect() -> Message:
    return {"type": "http.disconnect"}


class CallState(Document, frozen=True, kw_only=True):
    """The state of a call between two rounds: its run, the open question, answered interrupts."""

    run_id: str
    waiting_run_id: str = ""
    node_id: str = ""
    interrupt_id: str = ""
    answered: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """The run has ended."""

    snapshot: RunSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """The run has not ended: it waits for a person, or takes longer than the limit."""

    snapshot: RunSnapshot
    items: list[InboxItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """The run waits for an answer that this caller may give."""

    form: ElicitationForm
    state: CallState


class _Inbox(msgspec.Struct, frozen=True, kw_only=True):
    items: list[InboxItem]


class _PollResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The members of a poll response that a call needs."""

    last_event_seq: int
    events: list[_PolledEvent]


class _PolledEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str


class WorkflowCall:
    """A call of one workflow by one caller."""

    def __init__(
        self, api: ApiCalls, workflow_id: str, *, can_elicit: bool, report: ReportProgress
    ) -> None:
        self._api = api
        self._workflow_id = workflow_id
        self._can_elicit = can_elicit
        self._report = report

    async def start(self, inputs: JsonObject, *, key: str, traceparent: str) -> CallState:
        """Start a run. Calls with the same idempotency key start only one run."""
        headers = {"idempotency-key": key, "traceparent": traceparent}
        accepted = await self._api.call(
            "createRun",
            RunAccepted,
            body=CreateRun(workflow_id=self._workflow_id, inputs=inputs),
            headers={name: value for name, value in headers.items() if value},
        )
        return CallState(run_id=accepted.run_id)

    async def answer(self, state: CallState, content: JsonObject) -> CallState:
        """Submit the answer of a person, with the rights of the caller's key."""
        items = await self._pending(state.waiting_run_id)
        pending = next((each for each in items if each.interrupt_id == state.interrupt_id), None)
        form = None if pending is None else form_of(pending)
        if form is None:
            # Another person answered first. The run shows the result.
            return state
        await self._api.call(
            "answerInterrupt",
            AnswerTaken,
            path={"run_id": state.waiting_run_id, "node_id": state.node_id},
            query={"interruptId": state.interrupt_id},
            body=ResolveInterrupt(resume_value=form.read(content)),
        )
        answered = [*state.answered, state.interrupt_id]
        return msgspec.structs.replace(state, answered=answered)

    async def follow(self, state: CallState) -> EndedRun | WaitingRun | PendingQuestion:
        """Follow the run until it has ended or waits, at most for `mcp_call_seconds`."""
        seconds = self._api.host.settings.mcp_call_seconds
        last = -1
        with anyio.move_on_after(seconds or None):
            while True:
                last = await self._poll(state.run_id, last)
                outcome = await self._outcome(state)
                if outcome is not None:
                    return outcome
        return WaitingRun(snapshot=await self._snapshot(state.run_id), items=[])

    async def _poll(self, run_id: str, last: int) -> int:
        """Wait a short time for events of the run, and report progress to the client."""
        polled = await self._api.call(
            "pollEvents",
            _PollResponse,
            path={"run_id": run_id},
            query={"lastSequence": str(last), "timeout": str(POLL_SECONDS)},
        )
        await self._report(polled.events[-1].type if polled.events else "still running")
        return polled.last_event_seq

    async def _outcome(self, state: CallState) -> EndedRun | WaitingRun | PendingQuestion | None:
        snapshot = await self._snapshot(state.run_id)
        if snapshot.status in TERMINAL:
            return EndedRun(snapshot=await self._with_artifacts(snapshot))
        if not snapshot.status.startswith("waiting-"):
            return None
        items = await self._pending_of_tree(snapshot)
        if not items:
            # The interrupt was just answered; the run continues soon.
            return None
        return await self._next_question(state, items) or WaitingRun(snapshot=snapshot, items=items)

    async def _snapshot(self, run_id: str) -> RunSnapshot:
        return await self._api.call("getRun", RunSnapshot, path={"run_id": run_id})

    async def _with_artifacts(self, snapshot: RunSnapshot) -> RunSnapshot:
        """Return the snapshot with the artifacts that its outputs refer to."""
        values: dict[str, Json] = {}
        for reference in references_in(snapshot.outputs):
            name: str = reference["artifactId"]
            if name not in values:
                path = {"run_id": snapshot.run_id, "artifact_id": name}
                values[name] = await self._api.call("getArtifact", object, path=path)
        return msgspec.structs.replace(
            snapshot, outputs=resolve_references(snapshot.outputs, values)
        )

    async def _pending_of_tree(self, snapshot: RunSnapshot) -> list[InboxItem]:
        """Return the open interrupts of the run and of its child runs."""
        children = [] if isinstance(snapshot.child_runs, Unset) else snapshot.child_runs
        waiting = [each.run_id for each in children if each.status.startswith("waiting-")]
        return [
            item for run_id in (snapshot.run_id, *waiting) for item in await self._pending(run_id)
        ]

    async def _pending(self, run_id: str) -> list[InboxItem]:
        page = await self._api.call("listInterrupts", _Inbox, query={"runId": run_id})
        return page.items

    async def _next_question(
        self, state: CallState, items: list[InboxItem]
    ) -> PendingQuestion | None:
        """Return the first interrupt that this caller may answer and has not answered yet."""
        principal = await self._api.principal()
        if not self._can_elicit or not principal.may(RESPOND_SCOPE):
            return None
        by = Resolver(name=principal.key_id, role=principal.role, scopes=principal.scopes)
        for item in items:
            if item.interrupt_id in state.answered or not may_resolve(item.kind, item.data, by):
                continue
            form = form_of(item)
            if form is not None:
                next_state = msgspec.structs.replace(
                    state,
                    waiting_run_id=item.run_id,
                    node_id=item.node_id,
                    interrupt_id=item.interrupt_id,
                )
                return PendingQuestion(form=form, state=next_state)
        return None


class CallStateCipher:
    """Encrypts the state of a call for one caller."""

    def __init__(self, key: bytes) -> None:
        self._seal = Seal(derive(key, "mcp-request-state"))

    def encrypt(self, state: CallState, *bound_to: str) -> str:
        """Encrypt the state of a call as an opaque text."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._seal.seal(
            msgspec.json.encode(state), nonce=nonce, context=_context(bound_to)
        )
        return base64.urlsafe_b64encode(sealed).decode()

    def decrypt(self, state: str, *bound_to: str) -> CallState:
        """Decrypt the state of a call. Raises `Refused` if it belongs to another caller."""
        try:
            sealed = base64.urlsafe_b64decode(state)
            opened = self._seal.open(sealed, context=_context(bound_to))
        except (ValueError, binascii.Error, SealBroken):
            raise Refused(
                "requestState is not valid for this caller: send the value of the last result",
                field="requestState",
            ) from None
        return msgspec.json.decode(opened, type=CallState)


def _context(parts: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(parts)
