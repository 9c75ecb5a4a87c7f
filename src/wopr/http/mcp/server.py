"""The MCP server: tools are workflows, tool calls are runs, and sessions are limited per key.

Clients of older protocol versions keep a session; clients of the current version do not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeVar

import anyio
import anyio.abc
import msgspec
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request as HttpRequest

from wopr.http.endpoint import AppState, internal_error
from wopr.http.mcp import PATH
from wopr.http.mcp.calls import (
    ApiCalls,
    ApiError,
    CallState,
    CallStateCipher,
    EndedRun,
    PendingQuestion,
    WaitingRun,
    WorkflowCall,
)
from wopr.http.mcp.elicitation import call_in_rounds, can_elicit
from wopr.http.request import ASGIApp, Message, Receive, Scope, Send, is_traceparent
from wopr.http.response import error_envelope, error_response, send_response
from wopr.http.routes.workflows import WorkflowItem
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import ErrorEnvelope, RateLimited, Refused, Unavailable, WoprError
from wopr.protocol.interrupts import InboxItem
from wopr.protocol.runs import RunSnapshot
from wopr.protocol.workflow import WorkflowDefinition, WorkflowVariable
from wopr.security.api_keys import Principal
from wopr.version import __version__

MAX_SESSIONS_PER_KEY: Final = 50
MAX_SESSIONS: Final = 2000
IDLE_SECONDS: Final = 30 * 60
_RETRY_SECONDS: Final = 60
_SESSION_HEADER: Final = b"mcp-session-id"
_VERSION_HEADER: Final = b"mcp-protocol-version"
# Members of `_meta`: the first in calls, the second in results.
IDEMPOTENCY_KEY: Final = "io.openwop/idempotencyKey"
RUN_ID: Final = "io.openwop/runId"
_ANSWER: Final = "answer"
_CODES: Final = {"validation_error": INVALID_PARAMS, "internal_error": INTERNAL_ERROR}
_INSTRUCTIONS: Final = (
    "Each tool is a workflow. A call starts a durable run and waits for its end. If the run waits "
    "for a person, the result says so. No tool can give the person's answer."
)

Context = ServerRequestContext[Any, HttpRequest]
P = TypeVar("P")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Session:
    """A session. It has no id while it is being opened."""

    session_id: str | None = None
    requests: int = 0
    used_at: float = 0.0


class SessionLimit:
    """Passes requests on, and refuses requests that would open too many sessions for their key.

    The MCP library ends sessions that are idle for `idle_seconds` without a notification.
    """

    def __init__(self, serve: ASGIApp, *, idle_seconds: float, clock: Callable[[], float]) -> None:
        self._serve = serve
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._sessions: dict[tuple[str, str], list[_Session]] = {}

    async def serve(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        sessions = self._sessions_of(principal)
        session_id = _header(scope["headers"], _SESSION_HEADER)
        session = next(
            (each for each in sessions if session_id and each.session_id == session_id), None
        )
        is_opening = session_id is None and _has_session(_header(scope["headers"], _VERSION_HEADER))
        if is_opening and len(sessions) >= MAX_SESSIONS_PER_KEY:
            message = f"this key has {MAX_SESSIONS_PER_KEY} MCP sessions: end one of them first"
            refusal = RateLimited(message, retry_after=_RETRY_SECONDS)
            await send_response(send, error_response(refusal))
            return
        if is_opening:
            session = _Session()
            sessions.append(session)
        if session is None:
            # The session is unknown or not needed. The MCP library handles both.
            await self._serve(scope, receive, send)
        elif not await self._use(session, scope, receive, send) and session in sessions:
            sessions.remove(session)

    def _sessions_of(self, principal: Principal) -> list[_Session]:
        """Return the sessions of a key without those that were idle for too long."""
        sessions = self._sessions.setdefault((principal.tenant, principal.key_id), [])
        earliest = self._clock() - self._idle_seconds
        # A session without an id and without requests could not be opened.
        sessions[:] = [
            each
            for each in sessions
            if each.requests or (each.session_id and each.used_at > earliest)
        ]
        return sessions

    async def _use(self, session: _Session, scope: Scope, receive: Receive, send: Send) -> bool:
        """Serve a request of a session. Return whether the session still exists."""
        tracked_send = _SessionSend(send, session)
        session.requests += 1
        try:
            await self._serve(scope, receive, tracked_send)
        finally:
            session.requests -= 1
            session.used_at = self._clock()
        is_ended = scope["method"] == "DELETE" and tracked_send.status < 300
        return tracked_send.status != 404 and not is_ended


class _SessionSend:
    """Sends a response, and reads the session id from its headers."""

    def __init__(self, send: Send, session: _Session) -> None:
        self._send = send
        self._session = session
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Send a message; record the status and the session id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            session_id = _header(message["headers"], _SESSION_HEADER)
            if session_id is not None and self.status < 400:
                self._session.session_id = session_id
        await self._send(message)


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)


def _has_session(version: str | None) -> bool:
    """Return whether clients of this protocol version use sessions. Old clients send no version."""
    return version is None or version in HANDSHAKE_PROTOCOL_VERSIONS


class _WorkflowPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    items: list[WorkflowItem]
    next_cursor: str | None = None


class McpHandlers:
    """Handles the requests of MCP clients."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    def server(self) -> Server[Any]:
        """Create the server for the transports."""
        return Server(
            "wopr",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=self.with_mcp_errors(self.list_tools),
            on_call_tool=self.with_mcp_errors(self.call_tool),
            # Arguments are only in the body, so there are no headers to compare.
            get_tool_input_schema=lambda name: None,
        )

    async def list_tools(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """List the newest versions of the workflows that the caller can run, by id."""
        api = self._api(ctx)
        cursor = None if params is None else params.cursor
        page = await api.call(
            "listWorkflows", _WorkflowPage, query={} if cursor is None else {"cursor": cursor}
        )
        principal = await api.principal()
        if not principal.may("runs:create"):
            return ListToolsResult(tools=[])
        library = api.host.library
        rows = [await library.row(principal.tenant, item.id) for item in page.items]
        return ListToolsResult(
            tools=[_tool(msgspec.json.decode(row.body, type=WorkflowDefinition)) for row in rows],
            next_cursor=page.next_cursor,
        )

    async def call_tool(
        self, ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Run a workflow and return its result."""
        api = self._api(ctx)
        steps = count(1)

        async def report(message: str) -> None:
            await ctx.session.report_progress(next(steps), message=message)

        call = WorkflowCall(api, params.name, can_elicit=can_elicit(ctx), report=report)

        async def call_once(
            responses: InputResponses | None, state: str | None
        ) -> CallToolResult | InputRequiredResult:
            return await self._round(api, call, params, responses, state)

        seconds = api.host.settings.mcp_call_seconds
        return await call_in_rounds(ctx, params, call_once, seconds)

    async def _round(
        self,
        api: ApiCalls,
        call: WorkflowCall,
        params: CallToolRequestParams,
        responses: InputResponses | None,
        state: str | None,
    ) -> CallToolResult | InputRequiredResult:
        principal = await api.principal()
        bound_to = (principal.tenant, principal.key_id, params.name)
        cipher = CallStateCipher(api.host.session_key)
        call_state = None if state is None else cipher.decrypt(state, *bound_to)
        try:
            if call_state is None:
                call_state = await _start_call(call, params)
            else:
                call_state = await _answer_call(call, call_state, responses)
            outcome = await call.follow(call_state)
        except ApiError as error:
            if call_state is None and error.envelope.error == "not_found":
                name = (await api.redactor()).text(repr(params.name))
                raise MCPError(INVALID_PARAMS, f"there is no tool {name}") from error
            return _error_result(error, call_state)
        if isinstance(outcome, PendingQuestion):
            return _question_result(outcome, cipher.encrypt(outcome.state, *bound_to))
        return _ended_result(outcome) if isinstance(outcome, EndedRun) else _waiting_result(outcome)

    def with_mcp_errors(
        self, handler: Callable[[Context, P], Awaitable[R]]
    ) -> Callable[[Context, P], Awaitable[R]]:
        """Return a handler that raises all errors as MCP errors."""

        async def handle(ctx: Context, params: P) -> R:
            try:
                return await handler(ctx, params)
            except ApiError as error:
                raise _mcp_error(error.envelope) from error
            except WoprError as error:
                envelope = error_envelope(error, await self._api(ctx).redactor())
                raise _mcp_error(envelope) from error
            except MCPError:
                raise
            except Exception as error:  # the outer edge of a request
                raise _mcp_error(internal_error("POST", PATH, error).envelope()) from error

        return handle

    def _api(self, ctx: Context) -> ApiCalls:
        if ctx.request is None:
            raise MCPError(INVALID_REQUEST, "this server supports only HTTP")
        return ApiCalls(self._state, ctx.request.scope)


async def _start_call(call: WorkflowCall, params: CallToolRequestParams) -> CallState:
    meta: JsonObject = dict(params.meta or {})
    trace, key = str(meta.get("traceparent", "")), str(meta.get(IDEMPOTENCY_KEY, ""))
    if any(char > "\xff" for char in key):
        raise Refused(
            "an idempotency key may contain only Latin-1 characters", field=IDEMPOTENCY_KEY
        )
    return await call.start(
        params.arguments or {}, key=key, traceparent=trace if is_traceparent(trace) else ""
    )


async def _answer_call(
    call: WorkflowCall, call_state: CallState, responses: InputResponses | None
) -> CallState:
    """Submit the person's answer. If the person declined, do not ask this question again."""
    response = (responses or {}).get(_ANSWER)
    if isinstance(response, ElicitResult) and response.action == "accept":
        return await call.answer(call_state, dict(response.content or {}))
    answered = [*call_state.answered, call_state.interrupt_id]
    return msgspec.structs.replace(call_state, answered=answered)


def _question_result(outcome: PendingQuestion, state: str) -> InputRequiredResult:
    form = ElicitRequestFormParams(
        message=outcome.form.message, requested_schema=outcome.form.schema
    )
    return InputRequiredResult(
        input_requests={_ANSWER: ElicitRequest(params=form)}, request_state=state
    )


def _tool(definition: WorkflowDefinition) -> Tool:
    description = definition.description
    return Tool(
        name=definition.id,
        title=definition.name,
        description=definition.name if isinstance(description, Unset) else description,
        input_schema={
            "type": "object",
            "properties": {each.name: _property(each) for each in definition.variables},
            "required": [
                each.name
                for each in definition.variables
                if each.required and isinstance(each.default_value, Unset)
            ],
        },
    )


def _property(variable: WorkflowVariable) -> JsonObject:
    schema: JsonObject = {"type": variable.type}
    if not isinstance(variable.description, Unset):
        schema["description"] = variable.description
    if not isinstance(variable.default_value, Unset) and not variable.sensitive:
        schema["default"] = variable.default_value
    return schema


def _ended_result(outcome: EndedRun) -> CallToolResult:
    snapshot = outcome.snapshot
    if snapshot.status == "completed":
        outputs = {} if isinstance(snapshot.outputs, Unset) else snapshot.outputs
        return _result(snapshot.run_id, outputs, _json(outputs))
    error = snapshot.error
    code, message = (
        (f"run_{snapshot.status}", f"the run was {snapshot.status}")
        if isinstance(error, Unset)
        else (error.code, error.message)
    )
    structured: JsonObject = {
        "runId": snapshot.run_id,
        "status": snapshot.status,
        "error": {"code": code, "message": message},
    }
    text = f"{code}: {message} (run {snapshot.run_id})"
    return _result(snapshot.run_id, structured, text, is_error=True)


def _waiting_result(outcome: WaitingRun) -> CallToolResult:
    """Return the result for a run that has not ended: its id, and how to answer its interrupts."""
    snapshot = outcome.snapshot
    structured: JsonObject = {
        "runId": snapshot.run_id,
        "status": snapshot.status,
        "interrupts": [_interrupt(item) for item in outcome.items],
    }
    return _result(snapshot.run_id, structured, _waiting_text(snapshot, outcome.items))


def _interrupt(item: InboxItem) -> JsonObject:
    return {
        "interruptId": item.interrupt_id,
        "runId": item.run_id,
        "nodeId": item.node_id,
        "kind": item.kind,
        "question": item.question,
        "answerUrl": item.answer_url,
    }


def _waiting_text(snapshot: RunSnapshot, items: list[InboxItem]) -> str:
    first = f"Run {snapshot.run_id} of {snapshot.workflow_id} has not ended: {snapshot.status}."
    asked = [
        f"It waits for a person ({item.kind}): {item.question} Answer with POST {item.answer_url}, "
        f"or `wopr inbox answer {item.run_id} {item.node_id}`."
        for item in items
    ]
    return "\n".join([first, *asked])


def _error_result(failure: ApiError, call_state: CallState | None) -> CallToolResult:
    """Return an error for the model, with the run if there is one."""
    envelope = failure.envelope
    error: JsonObject = {
        "code": envelope.error,
        "message": envelope.message,
        "details": envelope.details,
    }
    if call_state is not None:
        text = f"{failure} (run {call_state.run_id})"
        return _result(
            call_state.run_id, {"runId": call_state.run_id, "error": error}, text, is_error=True
        )
    content = TextContent(text=str(failure))
    return CallToolResult(content=[content], structured_content={"error": error}, is_error=True)


def _mcp_error(envelope: ErrorEnvelope) -> MCPError:
    message = f"{envelope.error}: {envelope.message}"
    return MCPError(
        _CODES.get(envelope.error, INVALID_REQUEST), message, msgspec.to_builtins(envelope)
    )


def _result(run_id: str, value: JsonObject, text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text=text)],
        structured_content=value,
        is_error=is_error,
        _meta={RUN_ID: run_id},
    )


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()


async def run_sessions(state: AppState, *, task_status: anyio.abc.TaskStatus[SessionLimit]) -> None:
    """Serve MCP sessions until the task is cancelled."""
    if state.host is None:
        raise Unavailable("the host is starting")
    manager = StreamableHTTPSessionManager(
        McpHandlers(state).server(),
        session_idle_timeout=IDLE_SECONDS,
        max_sessions=MAX_SESSIONS,
        max_request_body_size=state.host.settings.max_body_bytes,
    )
    limit = SessionLimit(manager.handle_request, idle_seconds=IDLE_SECONDS, clock=state.clock)
    async with manager.run():
        task_status.started(limit)
        await anyio.sleep_forever()


def session_owner(principal: Principal) -> AuthenticatedUser:
    """Return the owner of a session: a tenant and one of its keys."""
    return AuthenticatedUser(
        AccessToken(token="", client_id=principal.key_id, scopes=[], subject=principal.tenant)
    )
