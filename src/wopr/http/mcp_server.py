"""The host as an MCP server: workflows are its tools, runs their calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, TypeVar

import msgspec
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
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
from starlette.requests import Request

from wopr import __version__
from wopr.http.answers import error_envelope
from wopr.http.endpoint import Shared, internal_error
from wopr.http.exchange import is_traceparent
from wopr.http.mcp import PATH
from wopr.http.mcp_caller import Caller, Told
from wopr.http.mcp_rounds import can_be_asked, in_rounds
from wopr.http.mcp_runs import Asks, Call, Ended, Place, Places, Waits
from wopr.http.workflows import WorkflowItem
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import ErrorEnvelope, Refused, WoprError
from wopr.protocol.runs import RunSnapshot
from wopr.protocol.workflow import WorkflowDefinition, WorkflowVariable
from wopr.runtime.inbox import InboxItem

# Members of `_meta`: what a client may send with a call, and what it gets with a result.
IDEMPOTENCY_KEY: Final = "io.openwop/idempotencyKey"
RUN_ID: Final = "io.openwop/runId"
_ANSWER: Final = "answer"
_CODES: Final = {"validation_error": INVALID_PARAMS, "internal_error": INTERNAL_ERROR}
_INSTRUCTIONS: Final = (
    "Each tool is a workflow. Calling it starts a durable run and waits for its end. A run that waits "
    "for a person is told as such: nothing that a tool returns can answer it."
)

Context = ServerRequestContext[Any, Request]
P = TypeVar("P")
R = TypeVar("R")


class _WorkflowPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    items: list[WorkflowItem]
    next_cursor: str | None = None


class McpHost:
    """Answers what MCP clients ask."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def server(self) -> Server[Any]:
        """The server that transports talk to."""
        return Server(
            "wopr",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=self.telling(self.list_tools),
            on_call_tool=self.telling(self.call_tool),
            # Arguments are in the body and nowhere else, so there are no headers to compare.
            get_tool_input_schema=lambda name: None,
        )

    async def list_tools(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """The workflows that the caller can run, newest versions, by id."""
        caller = self._caller(ctx)
        cursor = None if params is None else params.cursor
        page = await caller.call(
            "listWorkflows", _WorkflowPage, query={} if cursor is None else {"cursor": cursor}
        )
        principal = await caller.principal()
        if not principal.may("runs:create"):
            return ListToolsResult(tools=[])
        library = caller.host.library
        rows = [await library.row(principal.tenant, item.id) for item in page.items]
        return ListToolsResult(
            tools=[_tool(msgspec.json.decode(row.body, type=WorkflowDefinition)) for row in rows],
            next_cursor=page.next_cursor,
        )

    async def call_tool(
        self, ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Run a workflow and answer with what came of it."""
        caller = self._caller(ctx)
        steps = count(1)

        async def tell(message: str) -> None:
            await ctx.session.report_progress(next(steps), message=message)

        call = Call(caller, params.name, can_ask=can_be_asked(ctx), tell=tell)

        async def ask(
            responses: InputResponses | None, state: str | None
        ) -> CallToolResult | InputRequiredResult:
            return await self._round(caller, call, params, responses, state)

        seconds = caller.host.settings.mcp_call_seconds
        return await in_rounds(ctx, params, ask, seconds)

    async def _round(
        self,
        caller: Caller,
        call: Call,
        params: CallToolRequestParams,
        responses: InputResponses | None,
        state: str | None,
    ) -> CallToolResult | InputRequiredResult:
        principal = await caller.principal()
        bound_to = (principal.tenant, principal.key_id, params.name)
        places = Places(caller.host.session_key)
        place = None if state is None else places.read(state, *bound_to)
        try:
            if place is None:
                place = await _started(call, params)
            else:
                place = await _answered(call, place, responses)
            found = await call.follow(place)
        except Told as told:
            if place is None and told.envelope.error == "not_found":
                name = (await caller.redactor()).text(repr(params.name))
                raise MCPError(INVALID_PARAMS, f"there is no tool {name}") from told
            return _failed(told, place)
        if isinstance(found, Asks):
            return _question(found, places.write(found.place, *bound_to))
        return _ended(found) if isinstance(found, Ended) else _waiting(found)

    def telling(
        self, handler: Callable[[Context, P], Awaitable[R]]
    ) -> Callable[[Context, P], Awaitable[R]]:
        """The handler whose errors are those of MCP."""

        async def handle(ctx: Context, params: P) -> R:
            try:
                return await handler(ctx, params)
            except Told as told:
                raise _refused(told.envelope) from told
            except WoprError as error:
                envelope = error_envelope(error, await self._caller(ctx).redactor())
                raise _refused(envelope) from error
            except MCPError:
                raise
            except Exception as error:  # the outer edge of a request
                raise _refused(internal_error("POST", PATH, error).envelope()) from error

        return handle

    def _caller(self, ctx: Context) -> Caller:
        if ctx.request is None:
            raise MCPError(INVALID_REQUEST, "this server is reached over HTTP only")
        return Caller(self._shared, ctx.request.scope)


async def _started(call: Call, params: CallToolRequestParams) -> Place:
    meta: JsonObject = dict(params.meta or {})
    trace, key = str(meta.get("traceparent", "")), str(meta.get(IDEMPOTENCY_KEY, ""))
    if any(char > "\xff" for char in key):
        raise Refused("an idempotency key holds only characters of Latin-1", field=IDEMPOTENCY_KEY)
    return await call.start(
        params.arguments or {}, key=key, traceparent=trace if is_traceparent(trace) else ""
    )


async def _answered(call: Call, place: Place, responses: InputResponses | None) -> Place:
    """Pass on what the person said; one who declines has answered nothing, and is not asked again."""
    said = (responses or {}).get(_ANSWER)
    if isinstance(said, ElicitResult) and said.action == "accept":
        return await call.answer(place, dict(said.content or {}))
    answered = [*place.answered, place.interrupt_id]
    return msgspec.structs.replace(place, answered=answered)


def _question(found: Asks, state: str) -> InputRequiredResult:
    form = ElicitRequestFormParams(message=found.form.message, requested_schema=found.form.schema)
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


def _ended(found: Ended) -> CallToolResult:
    snapshot = found.snapshot
    if snapshot.status == "completed":
        outputs = {} if isinstance(snapshot.outputs, Unset) else snapshot.outputs
        return _result(snapshot.run_id, outputs, _json(outputs))
    error = snapshot.error
    code, message = (
        (f"run_{snapshot.status}", f"the run was {snapshot.status}")
        if isinstance(error, Unset)
        else (error.code, error.message)
    )
    told: JsonObject = {
        "runId": snapshot.run_id,
        "status": snapshot.status,
        "error": {"code": code, "message": message},
    }
    text = f"{code}: {message} (run {snapshot.run_id})"
    return _result(snapshot.run_id, told, text, is_error=True)


def _waiting(found: Waits) -> CallToolResult:
    """A run that goes on by itself: which one, what it waits for, and where that is answered."""
    snapshot = found.snapshot
    told: JsonObject = {
        "runId": snapshot.run_id,
        "status": snapshot.status,
        "interrupts": [_interrupt(item) for item in found.items],
    }
    return _result(snapshot.run_id, told, _told(snapshot, found.items))


def _interrupt(item: InboxItem) -> JsonObject:
    return {
        "interruptId": item.interrupt_id,
        "runId": item.run_id,
        "nodeId": item.node_id,
        "kind": item.kind,
        "question": item.question,
        "answerUrl": item.answer_url,
    }


def _told(snapshot: RunSnapshot, items: list[InboxItem]) -> str:
    first = f"Run {snapshot.run_id} of {snapshot.workflow_id} has not ended: {snapshot.status}."
    asked = [
        f"It waits for a person ({item.kind}): {item.question} Answered with POST {item.answer_url}, "
        f"or `wopr inbox answer {item.run_id} {item.node_id}`."
        for item in items
    ]
    return "\n".join([first, *asked])


def _failed(told: Told, place: Place | None) -> CallToolResult:
    """A refusal, told to the model so that it can do better; with the run, where there is one."""
    envelope = told.envelope
    error: JsonObject = {
        "code": envelope.error,
        "message": envelope.message,
        "details": envelope.details,
    }
    if place is not None:
        text = f"{told} (run {place.run_id})"
        return _result(place.run_id, {"runId": place.run_id, "error": error}, text, is_error=True)
    content = TextContent(text=str(told))
    return CallToolResult(content=[content], structured_content={"error": error}, is_error=True)


def _refused(envelope: ErrorEnvelope) -> MCPError:
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
