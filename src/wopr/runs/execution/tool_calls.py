"""Tool calls of a node: permissions, rate limits, and their events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from wopr.agents.tools.permissions import (
    ToolLimits,
    args_hash,
    forbidden_tool_error,
    is_allowed,
    permission_of,
    rate_limited_tool_error,
)
from wopr.agents.tools.tool import ToolFault, Transport
from wopr.engine.outcome import NodeFailure
from wopr.nodes.context import ToolUse
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import WoprError
from wopr.runs.active import ActiveRun
from wopr.runs.append import as_json
from wopr.runs.execution.context import ExecutionContext
from wopr.security.buckets import whole_seconds
from wopr.security.shapes import MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """Checks of the host before a tool is called."""

    limits: ToolLimits
    # Returns the scopes that a key of a tenant has now; None when there is no such key.
    scopes: Callable[[str, str], Awaitable[frozenset[str] | None]]


class ToolCalls:
    """The tool calls that a node makes in one execution.

    `allowlist` returns the tools that an agent may call, or None when it has no manifest.
    """

    def __init__(
        self,
        context: ExecutionContext,
        run: ActiveRun,
        policy: ToolPolicy,
        allowlist: Callable[[str], frozenset[str] | None],
    ) -> None:
        self._context = context
        self._run = run
        self._policy = policy
        self._allowlist = allowlist
        self._count = 0
        # Events of the calls of a framework, by call id.
        self._call_events: dict[str, str] = {}

    def record(self, agent_id: str, tool_name: str, arguments: Json, returned: JsonObject) -> bool:
        """Append a call of an agent's script and its return; False when the call is not allowed."""
        context = self._context
        call_id = self._next_id()
        tools = self._allowlist(agent_id)
        # An agent without a manifest belongs to the host. Its script may call any tool.
        if tools is not None and not is_allowed(tools, tool_name):
            # A call outside of the allowlist is only logged.
            message = f"{agent_id} may not use {tool_name}"
            context.log("warn", message, agentId=agent_id, toolName=tool_name, status="forbidden")
            return False
        base = _call_members(agent_id, tool_name, call_id)
        facts = self._call_facts(arguments, self._owner(), "native")
        inputs = {} if isinstance(arguments, Unset) else {"inputs": self._redact(arguments)}
        cause = context.emit("agent.toolCalled", base | facts | inputs)
        refusal = self._rate_refusal(tool_name)
        if refusal is not None:
            returned = _refusal_result(refusal)
        status = "error" if "error" in returned else "ok"
        context.emit("agent.toolReturned", base | {"status": status} | returned, causation_id=cause)
        return refusal is None

    def append_call(self, use: ToolUse, call_id: str, *, shows_content: bool) -> None:
        """Append a tool call of a framework, unless it is on the log without its return."""
        base = _call_members(use.agent_id, use.tool_name, call_id)
        self._call_events[call_id] = self._open_call(call_id) or self._append_call(
            use, base, shows_content
        )

    def append_return(self, base: JsonObject, returned: JsonObject, *, shows_content: bool) -> None:
        """Append the return of a framework's call."""
        call_id: str = base["callId"]
        status = "error" if "error" in returned else "ok"
        shown_return = returned if shows_content else _without_content(returned)
        cause = self._call_events.pop(call_id, "")
        redacted: JsonObject = self._redact({"status": status} | shown_return)
        self._context.emit("agent.toolReturned", base | redacted, causation_id=cause)

    async def call_for_host(
        self, use: ToolUse, effect: Callable[[], Awaitable[Json]], shown: Callable[[Json], Json]
    ) -> Json:
        """Call a tool for a node of the host, after the call is authorised and on the log.

        If the node's outputs are sensitive, the message of a failure is masked, because it may
        repeat them.
        """
        context = self._context
        call_id = self._next_id()
        base = _call_members(use.agent_id, use.tool_name, call_id)
        # A call from before a crash is on the log already, and keeps its id.
        cause = self._open_call(call_id) or context.record(
            "agent.toolCalled", base | self._call_facts(use.arguments, use.agent_id, use.transport)
        )
        refusal = await self._refusal(use)
        if refusal is not None:
            context.record("agent.toolReturned", base | _refusal_result(refusal), cause)
            raise _failure(refusal)
        await context.flush()
        began = context.clock()
        try:
            result = await effect()
        except NodeFailure as failure:
            error = {"code": failure.error.code, "message": failure.error.message}
            self._record_return(base, {"status": "error", "error": error}, began, cause)
            if context.is_private:
                raise _masked_failure(failure) from None
            raise
        self._record_return(base, {"status": "ok", "outcome": shown(result)}, began, cause)
        return result

    def _record_return(
        self, base: JsonObject, returned: JsonObject, began: int, cause: str
    ) -> None:
        context = self._context
        shown_return = _without_content(returned) if context.is_private else returned
        took = {"durationMs": context.clock() - began}
        context.record("agent.toolReturned", base | shown_return | took, cause)

    async def call_for_model(
        self, use: ToolUse, effect: Callable[[str, str], Awaitable[Json]], *, shows_content: bool
    ) -> JsonObject:
        """Call a tool for a model once, and return its recorded `outcome` or `error`.

        The effect gets the call id and the invocation id. A refusal or a failed tool does not fail
        the node: the model gets the error. With `shows_content` the log has the inputs and the outcome.
        """
        context = self._context
        has_returned = self._has_returned(self._count)
        call_id = self._next_id()
        base = _call_members(use.agent_id, use.tool_name, call_id)
        cause = (
            ""
            if has_returned
            else self._open_call(call_id) or self._append_call(use, base, shows_content)
        )
        await context.flush()
        key = f"tool:{use.tool_name}"
        invocation_id = context.invocation_id(key)

        async def perform() -> Json:
            refusal = await self._refusal(use)
            if refusal is not None:
                return _refusal_result(refusal)
            return await self._perform(effect, call_id, invocation_id)

        ended: JsonObject = await context.once(key, perform)
        if not has_returned:
            shown_return = ended if shows_content else _without_content(ended)
            context.emit("agent.toolReturned", base | shown_return, causation_id=cause)
            await context.flush()
        return {name: ended[name] for name in ("outcome", "error") if name in ended}

    def _append_call(self, use: ToolUse, base: JsonObject, shows_content: bool) -> str:
        facts = self._call_facts(use.arguments, self._owner(), use.transport)
        inputs = {"inputs": self._redact(use.arguments)} if shows_content else {}
        return self._context.emit("agent.toolCalled", base | facts | inputs)

    async def _perform(
        self, effect: Callable[[str, str], Awaitable[Json]], call_id: str, invocation_id: str
    ) -> JsonObject:
        began = self._context.clock()
        try:
            result = {"status": "ok", "outcome": await effect(call_id, invocation_id)}
        except ToolFault as fault:
            result = {"status": "error", "error": {"code": fault.code, "message": str(fault)}}
        ended: JsonObject = result | {"durationMs": self._context.clock() - began}
        # The model gets the recorded result, now and after a restart.
        redacted: JsonObject = await self._context.redact(as_json(ended))
        return redacted

    def _open_call(self, call_id: str) -> str | None:
        """Return the event of a tool call that is on the log without its return."""
        return self._context.state.nodes[self._context.node_id].open_calls.get(call_id)

    def _has_returned(self, number: int) -> bool:
        """Return whether the tool call with this number in this visit has its return on the log."""
        return number < self._run.state.nodes[self._context.node_id].tool_returns

    def _next_id(self) -> str:
        """Return the id of the next call. It is the same after a restart."""
        context = self._context
        visit = f".{context.visit}" if context.visit else ""
        call_id = f"call-{context.node_id}{visit}-{context.attempt}-{self._count}"
        self._count += 1
        return call_id

    def _call_facts(self, arguments: Json, principal: str, transport: Transport) -> JsonObject:
        given: Json = {} if isinstance(arguments, Unset) else arguments
        return {
            "argsHash": args_hash(self._redact(given)),
            "principal": principal,
            "transport": transport,
        }

    def _redact(self, arguments: Json) -> Json:
        return self._context.redactor.json(as_json(arguments))

    def _owner(self) -> str:
        """Return the key that started the run, or its tenant where the log has no key."""
        owner = self._context.state.owner
        principal = None if owner is None else owner.principal
        return principal if isinstance(principal, str) else self._context.tenant

    def _rate_refusal(self, tool_name: str) -> WoprError | None:
        caller = f"{self._context.tenant}/{self._owner()}"
        wait = self._policy.limits.take((caller, tool_name))
        return rate_limited_tool_error(tool_name, whole_seconds(wait)) if wait else None

    async def _refusal(self, use: ToolUse) -> WoprError | None:
        if use.required_scopes:
            scopes = await self._policy.scopes(self._context.tenant, self._owner())
            if permission_of(scopes, use.required_scopes) == "forbidden":
                return forbidden_tool_error(use.tool_name, use.required_scopes)
        return self._rate_refusal(use.tool_name)


def _call_members(agent_id: str, tool_name: str, call_id: str) -> JsonObject:
    """Return the members that identify a call in its two events."""
    return {"agentId": agent_id, "toolName": tool_name, "callId": call_id}


def _refusal_result(refusal: WoprError) -> JsonObject:
    """Return the result of a call that its scopes or the rate limit refused."""
    status = "forbidden" if refusal.code == "forbidden" else "rate_limited"
    return {"status": status, "error": {"code": refusal.code, "message": refusal.message}}


def _without_content(returned: JsonObject) -> JsonObject:
    """Return a payload without the outcome and with a masked error message."""
    shown_return = {name: value for name, value in returned.items() if name != "outcome"}
    error: JsonObject = shown_return.get("error", {})
    return (
        shown_return | {"error": {"code": error["code"], "message": MASK}}
        if error
        else shown_return
    )


def _masked_failure(failure: NodeFailure) -> NodeFailure:
    """Return a failure with only its code and HTTP status."""
    error = failure.error
    details: JsonObject = {} if isinstance(error.details, Unset) else error.details
    status: Json = details.get("status")
    return NodeFailure(
        MASK,
        code=error.code,
        retryable=error.retryable is not False,
        details={"status": status} if isinstance(status, int) else None,
    )


def _failure(refusal: WoprError) -> NodeFailure:
    return NodeFailure(
        refusal.message,
        code=refusal.code,
        retryable=refusal.code == "rate_limited",
        details=dict(refusal.details),
    )
