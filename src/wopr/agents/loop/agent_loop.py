"""The agent loop: a model answers, calls tools and repairs its answer until there is a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from wopr.agents.loop.config import AgentConfig
from wopr.agents.loop.context import AgentContext
from wopr.agents.loop.request_plan import HAND_OVER, RequestPlan
from wopr.agents.loop.session import ONE_TOOL_CALL, ModelSession
from wopr.agents.models.port import Message, ModelAnswer, Models, ToolCallPart
from wopr.agents.tools.tool import Tool
from wopr.engine.outcome import NodeFailure
from wopr.protocol.documents import Json, JsonObject, Unset, is_object
from wopr.protocol.json_schema.validation import SCHEMA_CHECK_FAILED, UserSchema
from wopr.security.untrusted import wrap_untrusted

_FENCE = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidAnswer:
    """Why an answer is not valid. The message contains no part of the answer."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """A valid answer. `was_fenced` means that it was inside a code block."""

    value: Json
    was_fenced: bool = False


async def read_document(
    ctx: AgentContext, text: str, schema: UserSchema, *, was_cut: bool
) -> ParsedAnswer | InvalidAnswer:
    """Decode and check an answer.

    Raises `NodeFailure` if the schema cannot be applied, because another answer would not help.
    """
    fenced = _code_block(text)
    try:
        value: Json = msgspec.json.decode(text if fenced is None else fenced)
    except msgspec.DecodeError as fault:
        if was_cut:
            return InvalidAnswer(reason="truncation", message="the answer was truncated")
        return InvalidAnswer(reason="parse-error", message=f"the answer is not JSON: {fault}")
    for violation in await ctx.violations(schema, value):
        message = f"{violation.place() or 'the answer'}: {violation.message}"
        if violation.code == SCHEMA_CHECK_FAILED:
            raise NodeFailure(
                f"The answer of the model could not be checked: {message}",
                code=violation.code,
                retryable=False,
            )
        return InvalidAnswer(reason="schema-violation", message=message)
    return ParsedAnswer(value=value, was_fenced=fenced is not None)


def _code_block(text: str) -> str | None:
    """Return the content of the code block if it is the whole text, else None.

    This takes linear time. A regular expression would backtrack over the line ends.
    """
    block = text.strip()
    language, line_end, content = block[len(_FENCE) : -len(_FENCE)].partition("\n")
    language = language.rstrip()
    is_language = not language or (language.isascii() and language.isalpha())
    is_fenced = block.startswith(_FENCE) and block.endswith(_FENCE)
    return content if is_fenced and line_end and is_language else None


REPAIRS: Final = 1
# The limit of wrong tool calls in nodes without tools: models can invent tools.
_MAX_WRONG_CALLS: Final = 3
_VALUE: Final = "the value"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """The result of the loop: text, a checked document, or a handoff."""

    answer: ModelAnswer
    value: Json
    handoff: JsonObject | None = None


class AgentLoop:
    """The loop of one node."""

    def __init__(self, ctx: AgentContext, plan: RequestPlan, models: Models) -> None:
        self.session = ModelSession(ctx, plan, models)
        self._ctx = ctx
        self._plan = plan
        self._schema = None if plan.schema is None else UserSchema(plan.schema, mask=_VALUE)
        self._checks: dict[str, UserSchema] = {}
        self._messages: list[Message] = []
        self._repairs = 0
        self._wrong_calls = 0

    async def run(self) -> LoopResult:
        """Make requests until there is a result. The budget bounds the loop."""
        while True:
            answer, is_new = await self.session.ask(tuple(self._messages))
            self._fail_on_refusal(answer, is_new)
            if answer.tool_calls:
                handoff = await self._use_tools(answer)
                if handoff is not None:
                    return LoopResult(answer=answer, value=None, handoff=handoff)
                continue
            self._record_truncation(answer, is_new)
            if self._schema is None:
                return LoopResult(answer=answer, value=answer.text)
            was_cut = answer.finish_reason == "length"
            found = await read_document(self._ctx, answer.text, self._schema, was_cut=was_cut)
            if isinstance(found, ParsedAnswer):
                self._record_recovery(found, is_new)
                return LoopResult(answer=answer, value=found.value)
            self._repair(answer, found, is_new)

    def _fail_on_refusal(self, answer: ModelAnswer, is_new: bool) -> None:
        """Raise `NodeFailure` if the model refused. The error does not contain the model's text."""
        if isinstance(answer.refusal, Unset):
            return
        if is_new:
            text = {"refusalText": answer.refusal} if answer.refusal else {}
            shown = {} if self._ctx.llm.is_private else text
            self.session.emit_if_advertised("envelope.refusal", self._about() | shown)
        raise NodeFailure(
            f"{self._plan.provider}:{self._plan.model} refused to answer",
            code="envelope_refused_by_provider",
            retryable=False,
        )

    def _record_truncation(self, answer: ModelAnswer, is_new: bool) -> None:
        if answer.finish_reason == "length" and is_new:
            payload: JsonObject = {
                "stopReason": "length",
                "partialPayloadAvailable": bool(answer.text),
                "outputTokenCount": answer.usage.output_tokens,
            }
            self.session.emit_if_advertised("envelope.truncated", self._about() | payload)

    def _record_recovery(self, found: ParsedAnswer, is_new: bool) -> None:
        if found.was_fenced and is_new:
            node = {"nodeId": self._ctx.node_id}
            self.session.emit_if_advertised(
                "envelope.recovery.applied", node | {"path": "markdown-fence"}
            )

    def _about(self) -> JsonObject:
        plan = self._plan
        return {"nodeId": self._ctx.node_id, "provider": plan.provider, "model": plan.model}

    def _repair(self, answer: ModelAnswer, found: InvalidAnswer, is_new: bool) -> None:
        """Report the error to the model once. The second time, raise `NodeFailure`."""
        node: JsonObject = {"nodeId": self._ctx.node_id}
        self._repairs += 1
        if self._repairs > REPAIRS:
            facts = {"totalAttempts": self._repairs, "finalReason": found.reason}
            if is_new:
                payload = node | facts | {"finalError": found.message}
                self.session.emit_if_advertised("envelope.retry.exhausted", payload)
            was_cut = found.reason == "truncation"
            hint = "; a larger maxOutputTokens may help" if was_cut else ""
            raise NodeFailure(
                f"The answer of the model does not fit the schema: {found.message}{hint}",
                code="envelope_truncation_unrecoverable" if was_cut else "envelope_payload_invalid",
                retryable=False,
                details={"reason": found.reason},
            )
        if is_new:
            facts = {"attempt": self._repairs, "reason": found.reason}
            payload = node | facts | {"previousError": found.message}
            self.session.emit_if_advertised("envelope.retry.attempted", payload)
        request = f"Your answer cannot be used: {found.message}. Answer again, as JSON that fits."
        self._messages += [_assistant_message(answer), Message(role="user", content=request)]

    async def _use_tools(self, answer: ModelAnswer) -> JsonObject | None:
        """Make the tool calls in the model's order. A handoff ends the loop."""
        self._messages.append(_assistant_message(answer))
        for call in answer.tool_calls:
            if call.name == HAND_OVER:
                handoff = self._handoff(call)
                if handoff is not None:
                    return handoff
                continue
            self._messages.append(await self._use_tool(call))
        return None

    async def _use_tool(self, call: ToolCallPart) -> Message:
        tool = self._plan.tools.get(call.name)
        fault = await self._call_fault(call, tool)
        if tool is None or fault:
            return self._reject_call(call, fault)
        self.session.require(ONE_TOOL_CALL)
        config = self._plan.config
        limit = config.tool_timeout_ms if isinstance(config, AgentConfig) else 0
        result = await self._ctx.llm.use_tool(self._plan.agent_id, tool, call.arguments, limit)
        self.session.count_tool_call()
        return _tool_message(call, wrap_untrusted(result, tool=tool.name))

    async def _call_fault(self, call: ToolCallPart, tool: Tool | None) -> str:
        """Return what is wrong with a call, or an empty text."""
        if tool is None:
            return f"there is no tool {call.name!r}"
        if not is_object(call.arguments):
            return "the arguments are not a JSON object"
        check = self._checks.get(call.name)
        if check is None:
            check = self._checks[call.name] = UserSchema(tool.parameters, mask=_VALUE)
        for violation in await self._ctx.violations(check, call.arguments):
            return f"{violation.place() or 'the arguments'}: {violation.message}"
        return ""

    def _reject_call(self, call: ToolCallPart, fault: str) -> Message:
        """Return the error of a tool call for the model, as often as the config allows.

        The log has a warning instead of a tool call. Raises `NodeFailure` above the limit.
        """
        self._wrong_calls += 1
        self._ctx.log("warn", f"A tool call was not made: {fault}", toolName=call.name)
        config = self._plan.config
        limit = config.max_wrong_calls if isinstance(config, AgentConfig) else _MAX_WRONG_CALLS
        if self._wrong_calls > limit:
            raise NodeFailure(
                f"The model made {self._wrong_calls} wrong tool calls. The last one: {fault}",
                code="tool_call_invalid",
                retryable=False,
            )
        return _tool_message(call, f"Error: {fault}. The call was not made.")

    def _handoff(self, call: ToolCallPart) -> JsonObject | None:
        config = self._plan.config
        agents = config.handoffs if isinstance(config, AgentConfig) else {}
        given: Json = call.arguments
        try:
            arguments = msgspec.convert(given, dict[str, str])
        except msgspec.ValidationError:
            arguments = {}
        if arguments.get("toAgentId") in agents:
            return {"toAgentId": arguments["toAgentId"], "reason": arguments.get("reason", "")}
        self._messages.append(
            self._reject_call(call, f"toAgentId must be one of {', '.join(agents)}")
        )
        return None


def _assistant_message(answer: ModelAnswer) -> Message:
    return Message(
        role="assistant", content=answer.text, tool_calls=answer.tool_calls, raw=answer.raw
    )


def _tool_message(call: ToolCallPart, content: str) -> Message:
    return Message(role="tool", content=content, name=call.name, tool_call_id=call.id)
