"""Tool calls on the record: who may call, how often, and what the log shows of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wopr.agents.tools import (
    ToolLimits,
    allowed,
    args_hash,
    decide,
    exhausted_tool,
    forbidden_tool,
)
from wopr.engine.outcome import NodeFailure
from wopr.nodes.context import ToolUse
from wopr.nodes.tools import ToolFault, Transport
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import WoprError
from wopr.runtime.appender import as_json
from wopr.security.buckets import whole_seconds
from wopr.security.shapes import MASK

if TYPE_CHECKING:
    from wopr.runtime.agent_call import AgentCall

Scopes = Callable[[str, str], Awaitable[frozenset[str] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """What the host asks before a tool is called."""

    limits: ToolLimits
    # The scopes that a key of a tenant has now; None when there is no such key.
    scopes: Scopes


class ToolCalls:
    """The tool calls of one node's call."""

    def __init__(self, call: AgentCall, policy: ToolPolicy) -> None:
        self._call = call
        self._policy = policy
        self._count = 0
        # The events of calls that a framework makes, by call id.
        self._announced: dict[str, str] = {}

    def record(self, agent_id: str, tool_name: str, arguments: Json, returned: JsonObject) -> bool:
        """Record a call that an agent's script makes; False when it may not be made."""
        call = self._call
        call_id = self._next_id()
        tools = call.tools(agent_id)
        # An agent without a manifest is the host's own, and its script says what it calls.
        if tools is not None and not allowed(tools, tool_name):
            # The log has no call of a tool that the agent does not have.
            note = f"{agent_id} may not use {tool_name}"
            call.log("warn", note, agentId=agent_id, toolName=tool_name, status="forbidden")
            return False
        base: JsonObject = {"agentId": agent_id, "toolName": tool_name, "callId": call_id}
        hooks = self._called(arguments, self._owner(), "native")
        shown = {} if isinstance(arguments, Unset) else {"inputs": self._redacted(arguments)}
        cause = call.emit("agent.toolCalled", base | hooks | shown)
        refusal = self._too_soon(tool_name)
        if refusal is not None:
            returned = _refused("rate_limited", refusal)
        status = "error" if "error" in returned else "ok"
        call.emit("agent.toolReturned", base | {"status": status} | returned, causation_id=cause)
        return refusal is None

    def announce(self, use: ToolUse, call_id: str, *, shows: bool) -> None:
        """Record that a framework calls a tool; a call that a wait cut short goes on."""
        call = self._call
        base: JsonObject = {
            "agentId": use.agent_id,
            "toolName": use.tool_name,
            "callId": call_id,
        }
        self._announced[call_id] = call.open_call(call_id) or self._announce(use, base, shows)

    def close(self, base: JsonObject, returned: JsonObject, *, shows: bool) -> None:
        """Record what came of a framework's call."""
        call_id: str = base["callId"]
        status = "error" if "error" in returned else "ok"
        told = returned if shows else _hidden(returned)
        cause = self._announced.pop(call_id, "")
        redacted: JsonObject = self._redacted({"status": status} | told)
        self._call.emit("agent.toolReturned", base | redacted, causation_id=cause)

    async def make(
        self, use: ToolUse, effect: Callable[[], Awaitable[Json]], shown: Callable[[Json], Json]
    ) -> Json:
        """Make a call of the host's own, once it is authorised and on the log.

        Where the node's outputs are sensitive a failure loses the other side's words, on the log and
        for whoever hears of it: they may repeat what the outputs would have held.
        """
        call = self._call
        base: JsonObject = {
            "agentId": use.agent_id,
            "toolName": use.tool_name,
            "callId": self._next_id(),
        }
        # A call that a crash cut short is on the log already, and goes on under the same id.
        cause = call.open_call(base["callId"]) or call.record(
            "agent.toolCalled", base | self._called(use.arguments, use.agent_id, use.transport)
        )
        refusal = await self._refusal(use)
        if refusal is not None:
            status = "forbidden" if refusal.code == "forbidden" else "rate_limited"
            call.record("agent.toolReturned", base | _refused(status, refusal), cause)
            raise _failure(refusal)
        await call.flush()
        began = call.clock()
        try:
            result = await effect()
        except NodeFailure as failure:
            error = {"code": failure.error.code, "message": failure.error.message}
            self._ended(base, {"status": "error", "error": error}, began, cause)
            if call.is_private:
                raise _wordless(failure) from None
            raise
        self._ended(base, {"status": "ok", "outcome": shown(result)}, began, cause)
        return result

    def _ended(self, base: JsonObject, returned: JsonObject, began: int, cause: str) -> None:
        call = self._call
        told = _hidden(returned) if call.is_private else returned
        took = {"durationMs": call.clock() - began}
        call.record("agent.toolReturned", base | told | took, cause)

    async def use(
        self, use: ToolUse, effect: Callable[[str, str], Awaitable[Json]], *, shows: bool
    ) -> JsonObject:
        """Make a call that a model asked for: `outcome` or `error`, recorded once and for all.

        The effect gets the call's id and the id of its invocation. Neither a refusal nor a tool
        that fails fails the node: the model is told. `shows` says whether the log may have what
        goes in and comes out.
        """
        call = self._call
        is_over = call.has_returned(self._count)
        call_id = self._next_id()
        base: JsonObject = {
            "agentId": use.agent_id,
            "toolName": use.tool_name,
            "callId": call_id,
        }
        cause = "" if is_over else call.open_call(call_id) or self._announce(use, base, shows)
        await call.flush()
        key = f"tool:{use.tool_name}"
        invocation_id = call.invocation_id(key)

        async def perform() -> Json:
            refusal = await self._refusal(use)
            if refusal is not None:
                status = "forbidden" if refusal.code == "forbidden" else "rate_limited"
                return _refused(status, refusal)
            return await self._performed(effect, call_id, invocation_id)

        ended: JsonObject = await call.once(key, perform)
        if not is_over:
            told = ended if shows else _hidden(ended)
            call.emit("agent.toolReturned", base | told, causation_id=cause)
            await call.flush()
        return {name: ended[name] for name in ("outcome", "error") if name in ended}

    def _announce(self, use: ToolUse, base: JsonObject, shows: bool) -> str:
        hooks = self._called(use.arguments, self._owner(), use.transport)
        shown = {"inputs": self._redacted(use.arguments)} if shows else {}
        return self._call.emit("agent.toolCalled", base | hooks | shown)

    async def _performed(
        self, effect: Callable[[str, str], Awaitable[Json]], call_id: str, invocation_id: str
    ) -> JsonObject:
        began = self._call.clock()
        try:
            result = {"status": "ok", "outcome": await effect(call_id, invocation_id)}
        except ToolFault as fault:
            result = {"status": "error", "error": {"code": fault.code, "message": str(fault)}}
        ended: JsonObject = result | {"durationMs": self._call.clock() - began}
        # What is recorded is what the model gets, now and after a restart.
        redacted: JsonObject = await self._call.redacted(as_json(ended))
        return redacted

    def _next_id(self) -> str:
        """The id of the next call: the same after a restart, another in every visit and attempt."""
        call = self._call
        visit = f".{call.visit}" if call.visit else ""
        call_id = f"call-{call.node_id}{visit}-{call.attempt}-{self._count}"
        self._count += 1
        return call_id

    def _called(self, arguments: Json, principal: str, transport: Transport) -> JsonObject:
        given: Json = {} if isinstance(arguments, Unset) else arguments
        return {
            "argsHash": args_hash(self._redacted(given)),
            "principal": principal,
            "transport": transport,
        }

    def _redacted(self, arguments: Json) -> Json:
        return self._call.redactor.json(as_json(arguments))

    def _owner(self) -> str:
        """The key that started the run, or its tenant where the log names no key."""
        owner = self._call.state.owner
        principal = None if owner is None else owner.principal
        return principal if isinstance(principal, str) else self._call.tenant

    def _too_soon(self, tool_name: str) -> WoprError | None:
        who = f"{self._call.tenant}/{self._owner()}"
        wait = self._policy.limits.take((who, tool_name))
        return exhausted_tool(tool_name, whole_seconds(wait)) if wait else None

    async def _refusal(self, use: ToolUse) -> WoprError | None:
        if use.required_scopes:
            scopes = await self._policy.scopes(self._call.tenant, self._owner())
            if decide(scopes, use.required_scopes) == "forbidden":
                return forbidden_tool(use.tool_name, use.required_scopes)
        return self._too_soon(use.tool_name)


def _refused(status: str, refusal: WoprError) -> JsonObject:
    """The return of a call that was not made: it took no time."""
    return {"status": status, "error": {"code": refusal.code, "message": refusal.message}}


def _hidden(returned: JsonObject) -> JsonObject:
    """A return without the tool's own words: of an error only its code is told."""
    told = {name: value for name, value in returned.items() if name != "outcome"}
    error: JsonObject = told.get("error", {})
    return told | {"error": {"code": error["code"], "message": MASK}} if error else told


def _wordless(failure: NodeFailure) -> NodeFailure:
    """A failure of which only the code is told, and the status that the other side gave."""
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
