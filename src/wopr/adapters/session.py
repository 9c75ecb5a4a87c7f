"""The events of a framework while its node is executed, recorded on the run's log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from wopr.adapters.steps import Step, StepRecord
from wopr.agents.loop.config import Budget
from wopr.agents.loop.context import BudgetUsage
from wopr.agents.loop.session import (
    NO_USAGE,
    ONE_TOOL_CALL,
    BudgetExceeded,
    caps_of,
    exceeded_cap,
    usage_payload,
)
from wopr.agents.models.port import ModelFault, ModelUsage
from wopr.engine.outcome import Breached
from wopr.nodes.context import NodeContext
from wopr.protocol.documents import Json, JsonObject

_UNKNOWN = "unknown"
_USAGE = "provider.usage"
_HANDOFF = "agent.handoff"
_TOOL_CALLED = "agent.toolCalled"


def to_plain_json(value: object) -> Json:
    """Convert a value to JSON. A value that JSON cannot express becomes text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {str(name): to_plain_json(member) for name, member in members.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain_json(item) for item in cast("Iterable[object]", value)]
    dump: Any = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        # Most frameworks use pydantic models.
        return to_plain_json(dump(mode="json"))
    if isinstance(value, msgspec.Struct):
        return to_plain_json(msgspec.to_builtins(value))
    return _members(value)


def _members(value: object) -> Json:
    """Convert the members of a dataclass. Any other value becomes text."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return str(value)
    fields = dataclasses.fields(value)
    return {field.name: to_plain_json(getattr(value, field.name)) for field in fields}


def not_installed_error(what: str, extra: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for a framework that is not installed."""
    message = f'the adapter for {what} needs {missing.name}: pip install "wopr[{extra}]"'
    return ModuleNotFoundError(message, name=missing.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """The facts of a model call that the framework reports."""

    provider: str
    model: str
    usage: ModelUsage
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkToolCall:
    """A tool call of an agent. `call_id` is the id of the framework."""

    agent_id: str
    name: str
    call_id: str
    arguments: object


class FrameworkSession:
    """One execution of a node by a framework.

    The methods `..._nowait` emit an event without waiting, for synchronous code. The other methods
    return when the event is on the log, and raise `BudgetExceeded` if a budget is exceeded.
    """

    def __init__(self, ctx: NodeContext, agent_id: str, framework: str, budget: Budget) -> None:
        self.ctx = ctx
        self.agent_id = agent_id
        self.record = StepRecord(ctx, framework)
        # The limit that was reached. Stored because the framework may hide the exception.
        self.breached: Breached | None = None
        # The error of a refused model call. Stored because the framework may hide the exception.
        self.refused: ModelFault | None = None
        # Set when the tenant had no model tokens left at the last check.
        self._no_tokens: ModelFault | None = None
        self._uncounted_tokens = 0
        self._caps = caps_of(budget)
        self._open: dict[str, FrameworkToolCall] = {}

    @property
    def thread_id(self) -> str:
        """A name that is unique for the run, the node and the visit."""
        return f"{self.ctx.run_id}:{self.ctx.node_id}:{self.ctx.visit}"

    async def store(self, step: Step) -> Step:
        """Store a step. Raises `BudgetExceeded` if it used more than the budget."""
        self.require_budget(NO_USAGE)
        await self.check_tokens()
        return await self.record.store(step)

    def require_budget(self, wanted: BudgetUsage) -> None:
        """Raise `BudgetExceeded` if the usage so far plus `wanted` is above a budget."""
        llm = self.ctx.llm
        self.breached = (
            self.breached
            or exceeded_cap(self.record.spent, self._caps, "node", wanted)
            or exceeded_cap(llm.spent, llm.caps, "run", wanted)
        )
        if self.breached is not None:
            raise BudgetExceeded(self.breached)

    async def before_model_call(self) -> None:
        """Check the token quota before a model call. Raises `ModelFault` if no tokens are left."""
        await self.check_tokens()
        self.require_tokens()

    def require_tokens(self) -> None:
        """Raise `ModelFault` if the tenant had no tokens left at the last check."""
        if self._no_tokens is not None:
            self.refused = self._no_tokens
            raise self.refused

    async def check_tokens(self) -> None:
        """Count the used tokens, and check whether the tenant has tokens left."""
        await self.count_tokens()
        try:
            await self.ctx.llm.check_model_tokens()
        except ModelFault as error:
            self._no_tokens = error

    async def count_tokens(self) -> None:
        """Count the used tokens in the tenant's daily quota."""
        tokens, self._uncounted_tokens = self._uncounted_tokens, 0
        await self.ctx.llm.add_model_tokens(tokens)

    async def record_model_call(self, agent_id: str, call: ModelCall) -> None:
        """Record the usage and the reasoning of a model call."""
        self.record_model_call_nowait(agent_id, call)
        await self.count_tokens()
        await self.ctx.flush()
        self.require_budget(NO_USAGE)

    def record_model_call_nowait(self, agent_id: str, call: ModelCall) -> None:
        """Do the same as `record_model_call`, without waiting."""
        usage = call.usage
        tokens = usage.input_tokens + usage.output_tokens
        self.record.spent += BudgetUsage(tokens=tokens, cost_usd=usage.cost_usd or 0.0, calls=1)
        self._uncounted_tokens += tokens
        if self.ctx.llm.advertises(_USAGE):
            provider, model = call.provider or _UNKNOWN, call.model or _UNKNOWN
            self.ctx.emit(_USAGE, usage_payload(provider, model, usage, self.ctx.node_id))
        if call.reasoning and not self.ctx.llm.is_private:
            self.ctx.reason(agent_id, call.reasoning)

    async def record_tool_call(self, call: FrameworkToolCall) -> None:
        """Record the start of a tool call."""
        self.require_budget(ONE_TOOL_CALL)
        self.record_tool_call_nowait(call)
        await self.ctx.flush()

    def record_tool_call_nowait(self, call: FrameworkToolCall) -> None:
        """Do the same as `record_tool_call`, without waiting."""
        self.record.spent += ONE_TOOL_CALL
        self._open[call.call_id] = call
        if self.ctx.llm.advertises(_TOOL_CALLED):
            given, call_id = to_plain_json(call.arguments), self._id(call)
            self.ctx.announce_tool_call(call.agent_id, call.name, call_id, given)

    async def record_tool_return(self, call_id: str, returned: JsonObject) -> None:
        """Record the result of a tool call: `outcome`, or `error: {code, message}`."""
        self.record_tool_return_nowait(call_id, returned)
        await self.ctx.flush()

    def record_tool_return_nowait(self, call_id: str, returned: JsonObject) -> None:
        """Do the same as `record_tool_return`, without waiting."""
        call = self._open.pop(call_id, None)
        if call is not None and self.ctx.llm.advertises(_TOOL_CALLED):
            self.ctx.record_tool_return(call.agent_id, call.name, self._id(call), returned)

    async def record_rejected_tool_call(self, call: FrameworkToolCall, message: str) -> None:
        """Record a tool call that a person rejected."""
        if self.ctx.llm.advertises(_TOOL_CALLED):
            error = {"code": "interrupt_rejected", "message": message or "the call was rejected"}
            call_id = self._id(call)
            self.ctx.announce_tool_call(
                call.agent_id, call.name, call_id, to_plain_json(call.arguments)
            )
            refusal: JsonObject = {"status": "forbidden", "error": error}
            self.ctx.record_tool_return(call.agent_id, call.name, call_id, refusal)
            await self.ctx.flush()

    def forget_tool_call(self, call_id: str) -> None:
        """Forget a tool call that waits for a person. Its result comes in a later execution."""
        self._open.pop(call_id, None)

    def fail_open_calls(self, error: BaseException) -> None:
        """Record an error for every open tool call after a failure of the framework."""
        for call_id in tuple(self._open):
            self.record_tool_return_nowait(call_id, tool_error(error))

    async def record_handoff(self, from_agent: str, to_agent: str) -> None:
        """Record a handoff from one agent to another."""
        self.record_handoff_nowait(from_agent, to_agent)
        await self.ctx.flush()

    def record_handoff_nowait(self, from_agent: str, to_agent: str) -> None:
        """Do the same as `record_handoff`, without waiting."""
        if from_agent != to_agent and self.ctx.llm.advertises(_HANDOFF):
            self.ctx.emit(_HANDOFF, {"fromAgentId": from_agent, "toAgentId": to_agent})

    def _id(self, call: FrameworkToolCall) -> str:
        """Return the id of a call in the log. The framework's id is unique only in this node."""
        ctx = self.ctx
        visit = f".{ctx.visit}" if ctx.visit else ""
        return f"call-{ctx.node_id}{visit}-{call.call_id}"


def tool_error(error: BaseException) -> JsonObject:
    """Return the result of a tool that raised."""
    message = f"{type(error).__name__}: {error}"
    return {"error": {"code": "tool_error", "message": message}}
