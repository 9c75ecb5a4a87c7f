"""The work of a node that asks a model: answers, tools, repairs, until there is a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from wopr.engine.expression_tokens import is_object
from wopr.engine.outcome import NodeFailure
from wopr.nodes.context import NodeContext
from wopr.nodes.llm_answers import Document, Unusable, read_document
from wopr.nodes.llm_budget import ONE_TOOL_CALL
from wopr.nodes.llm_config import AgentConfig
from wopr.nodes.llm_plan import HAND_OVER, Plan
from wopr.nodes.llm_talk import Talk
from wopr.nodes.models import Message, ModelAnswer, Models, ToolCallPart
from wopr.nodes.tools import Tool
from wopr.protocol.checking import UserSchema
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.security.untrusted import untrusted

REPAIRS: Final = 1
# Nodes without tools of their own still bound a model that makes some up.
_WRONG_CALLS: Final = 3
_VALUE: Final = "the value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of the work: text or a checked document, or a wish to hand over."""

    answer: ModelAnswer
    value: Json
    handoff: JsonObject | None = None


class Work:
    """One node's work."""

    def __init__(self, ctx: NodeContext, plan: Plan, models: Models) -> None:
        self.talk = Talk(ctx, plan, models)
        self._ctx = ctx
        self._plan = plan
        self._schema = None if plan.schema is None else UserSchema(plan.schema, mask=_VALUE)
        self._checks: dict[str, UserSchema] = {}
        self._said: list[Message] = []
        self._repairs = 0
        self._wrong_calls = 0

    async def finish(self) -> Finding:
        """Ask until there is a result. Every way out is bounded by the budget."""
        while True:
            answer, is_new = await self.talk.ask(tuple(self._said))
            self._refuse(answer, is_new)
            if answer.tool_calls:
                handoff = await self._use_tools(answer)
                if handoff is not None:
                    return Finding(answer=answer, value=None, handoff=handoff)
                continue
            self._note_cut(answer, is_new)
            if self._schema is None:
                return Finding(answer=answer, value=answer.text)
            was_cut = answer.finish_reason == "length"
            found = await read_document(self._ctx, answer.text, self._schema, was_cut=was_cut)
            if isinstance(found, Document):
                self._note_fence(found, is_new)
                return Finding(answer=answer, value=found.value)
            self._repair(answer, found, is_new)

    def _refuse(self, answer: ModelAnswer, is_new: bool) -> None:
        """Fail the node when the model declined; what it said stays out of the run's error."""
        if isinstance(answer.refusal, Unset):
            return
        if is_new:
            text = {"refusalText": answer.refusal} if answer.refusal else {}
            shown = {} if self._ctx.llm.is_private else text
            self.talk.tell("envelope.refusal", self._about() | shown)
        raise NodeFailure(
            f"{self._plan.provider}:{self._plan.model} refused to answer",
            code="envelope_refused_by_provider",
            retryable=False,
        )

    def _note_cut(self, answer: ModelAnswer, is_new: bool) -> None:
        if answer.finish_reason == "length" and is_new:
            facts: JsonObject = {
                "stopReason": "length",
                "partialPayloadAvailable": bool(answer.text),
                "outputTokenCount": answer.usage.output_tokens,
            }
            self.talk.tell("envelope.truncated", self._about() | facts)

    def _note_fence(self, found: Document, is_new: bool) -> None:
        if found.was_fenced and is_new:
            node = {"nodeId": self._ctx.node_id}
            self.talk.tell("envelope.recovery.applied", node | {"path": "markdown-fence"})

    def _about(self) -> JsonObject:
        plan = self._plan
        return {"nodeId": self._ctx.node_id, "provider": plan.provider, "model": plan.model}

    def _repair(self, answer: ModelAnswer, found: Unusable, is_new: bool) -> None:
        """Tell the model what is wrong, once; after that the node fails."""
        node: JsonObject = {"nodeId": self._ctx.node_id}
        self._repairs += 1
        if self._repairs > REPAIRS:
            facts = {"totalAttempts": self._repairs, "finalReason": found.reason}
            if is_new:
                payload = node | facts | {"finalError": found.message}
                self.talk.tell("envelope.retry.exhausted", payload)
            was_cut = found.reason == "truncation"
            hint = "; maxOutputTokens may allow it more" if was_cut else ""
            raise NodeFailure(
                f"the model's answer does not fit the schema: {found.message}{hint}",
                code="envelope_truncation_unrecoverable" if was_cut else "envelope_payload_invalid",
                retryable=False,
                details={"reason": found.reason},
            )
        if is_new:
            facts = {"attempt": self._repairs, "reason": found.reason}
            payload = node | facts | {"previousError": found.message}
            self.talk.tell("envelope.retry.attempted", payload)
        wish = f"Your answer cannot be used: {found.message}. Answer again, as JSON that fits."
        self._said += [_spoken(answer), Message(role="user", content=wish)]

    async def _use_tools(self, answer: ModelAnswer) -> JsonObject | None:
        """Make the calls in the order that the model wants them; a hand-over ends the work."""
        self._said.append(_spoken(answer))
        for call in answer.tool_calls:
            if call.name == HAND_OVER:
                handoff = self._handoff(call)
                if handoff is not None:
                    return handoff
                continue
            self._said.append(await self._use_tool(call))
        return None

    async def _use_tool(self, call: ToolCallPart) -> Message:
        tool = self._plan.tools.get(call.name)
        fault = await self._fault(call, tool)
        if tool is None or fault:
            return self._wrong(call, fault)
        self.talk.require(ONE_TOOL_CALL)
        config = self._plan.config
        limit = config.tool_timeout_ms if isinstance(config, AgentConfig) else 0
        result = await self._ctx.llm.use_tool(self._plan.agent_id, tool, call.arguments, limit)
        self.talk.used_tool()
        return _returned(call, untrusted(result, tool=tool.name))

    async def _fault(self, call: ToolCallPart, tool: Tool | None) -> str:
        """What is wrong with a call before it is made."""
        if tool is None:
            return f"there is no tool {call.name!r} for you"
        if not is_object(call.arguments):
            return "the arguments are not a JSON object"
        check = self._checks.get(call.name)
        if check is None:
            check = self._checks[call.name] = UserSchema(tool.parameters, mask=_VALUE)
        for violation in await self._ctx.violations(check, call.arguments):
            return f"{violation.place() or 'the arguments'}: {violation.message}"
        return ""

    def _wrong(self, call: ToolCallPart, fault: str) -> Message:
        """Tell the model that its call was wrong, as often as the config allows.

        The log has no call of a tool that the agent does not have; it has a note.
        """
        self._wrong_calls += 1
        self._ctx.log("warn", f"a tool call was not made: {fault}", toolName=call.name)
        config = self._plan.config
        most = config.max_wrong_calls if isinstance(config, AgentConfig) else _WRONG_CALLS
        if self._wrong_calls > most:
            raise NodeFailure(
                f"the model made {self._wrong_calls} wrong tool calls; the last: {fault}",
                code="tool_call_invalid",
                retryable=False,
            )
        return _returned(call, f"Error: {fault}. The call was not made.")

    def _handoff(self, call: ToolCallPart) -> JsonObject | None:
        config = self._plan.config
        agents = config.handoffs if isinstance(config, AgentConfig) else {}
        wanted: Json = call.arguments
        try:
            wish = msgspec.convert(wanted, dict[str, str])
        except msgspec.ValidationError:
            wish = {}
        if wish.get("toAgentId") in agents:
            return {"toAgentId": wish["toAgentId"], "reason": wish.get("reason", "")}
        self._said.append(self._wrong(call, f"toAgentId must be one of {', '.join(agents)}"))
        return None


def _spoken(answer: ModelAnswer) -> Message:
    return Message(
        role="assistant", content=answer.text, tool_calls=answer.tool_calls, raw=answer.raw
    )


def _returned(call: ToolCallPart, content: str) -> Message:
    return Message(role="tool", content=content, name=call.name, tool_call_id=call.id)
