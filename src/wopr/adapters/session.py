"""What a framework does while its node is called, put on the run's log as it happens."""

from __future__ import annotations

from dataclasses import dataclass

from wopr.adapters.plain import plain
from wopr.adapters.steps import Record, Step
from wopr.engine.outcome import Breached
from wopr.nodes.context import NodeContext
from wopr.nodes.llm_budget import NOTHING, ONE_TOOL_CALL, breach, caps_of
from wopr.nodes.llm_config import Budget
from wopr.nodes.llm_context import Spent
from wopr.nodes.llm_talk import BudgetSpent, usage_payload
from wopr.nodes.models import ModelFault, ModelUsage
from wopr.protocol.documents import JsonObject

_UNKNOWN = "unknown"
_USAGE = "provider.usage"
_HANDOFF = "agent.handoff"
_TOOL_EVENTS = "agent.toolCalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A model call that a framework made, as far as it tells of it."""

    provider: str
    model: str
    usage: ModelUsage
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of an agent; `call_id` is the framework's own."""

    agent_id: str
    name: str
    call_id: str
    arguments: object


class Session:
    """One call of a node that lets a framework work.

    `note_...` only notes an event, for code that cannot wait; the others have it on the log when
    they return, and end the work when a budget is spent.
    """

    def __init__(self, ctx: NodeContext, agent_id: str, framework: str, budget: Budget) -> None:
        self.ctx = ctx
        self.agent_id = agent_id
        self.record = Record(ctx, framework)
        # The cap that was reached, whatever the framework makes of the exception.
        self.breached: Breached | None = None
        # The refusal of a model call. A framework may hide the exception.
        self.refused: ModelFault | None = None
        # Set when the tenant had no model tokens left at the last check.
        self._no_tokens: ModelFault | None = None
        self._uncounted_tokens = 0
        self._caps = caps_of(budget)
        self._open: dict[str, ToolCall] = {}

    @property
    def thread_id(self) -> str:
        """A name for this work that no other run, node or visit has."""
        return f"{self.ctx.run_id}:{self.ctx.node_id}:{self.ctx.visit}"

    async def keep(self, step: Step) -> Step:
        """Keep a step, unless the budget that it used was not there."""
        self.require(NOTHING)
        await self.check_tokens()
        return await self.record.keep(step)

    def require(self, wanted: Spent) -> None:
        """Raise `BudgetSpent` unless so much may still be used, and no more was used than allowed."""
        llm = self.ctx.llm
        self.breached = (
            self.breached
            or breach(self.record.spent, self._caps, "node", wanted)
            or breach(llm.spent, llm.caps, "run", wanted)
        )
        if self.breached is not None:
            raise BudgetSpent(self.breached)

    async def asks_model(self) -> None:
        """A model is about to be asked. Raises `ModelFault` when the tenant has no tokens left."""
        await self.check_tokens()
        self.note_question()

    def note_question(self) -> None:
        """The same without waiting: the tokens are those of the last check."""
        if self._no_tokens is not None:
            self.refused = self._no_tokens
            raise self.refused

    async def check_tokens(self) -> None:
        """Count the tokens that were used, and find out whether the tenant has any left."""
        await self.count_tokens()
        try:
            await self.ctx.llm.check_model_tokens()
        except ModelFault as full:
            self._no_tokens = full

    async def count_tokens(self) -> None:
        """Count the tokens that were used in the tenant's quota of this day."""
        tokens, self._uncounted_tokens = self._uncounted_tokens, 0
        await self.ctx.llm.add_model_tokens(tokens)

    async def called_model(self, agent_id: str, call: ModelCall) -> None:
        """A model has answered: what it cost, and what it thought."""
        self.note_model_call(agent_id, call)
        await self.count_tokens()
        await self.ctx.flush()
        self.require(NOTHING)

    def note_model_call(self, agent_id: str, call: ModelCall) -> None:
        """The same without waiting."""
        usage = call.usage
        tokens = usage.input_tokens + usage.output_tokens
        self.record.spent += Spent(tokens=tokens, cost_usd=usage.cost_usd or 0.0, calls=1)
        self._uncounted_tokens += tokens
        if self.ctx.llm.advertises(_USAGE):
            provider, model = call.provider or _UNKNOWN, call.model or _UNKNOWN
            self.ctx.emit(_USAGE, usage_payload(provider, model, usage, self.ctx.node_id))
        if call.reasoning and not self.ctx.llm.is_private:
            self.ctx.reason(agent_id, call.reasoning)

    async def calls_tool(self, call: ToolCall) -> None:
        """A tool is about to be called."""
        self.require(ONE_TOOL_CALL)
        self.note_tool_call(call)
        await self.ctx.flush()

    def note_tool_call(self, call: ToolCall) -> None:
        """The same without waiting."""
        self.record.spent += ONE_TOOL_CALL
        self._open[call.call_id] = call
        if self.ctx.llm.advertises(_TOOL_EVENTS):
            given, call_id = plain(call.arguments), self._id(call)
            self.ctx.announce_tool_call(call.agent_id, call.name, call_id, given)

    async def tool_returned(self, call_id: str, returned: JsonObject) -> None:
        """A tool has answered with `outcome`, or failed with `error: {code, message}`."""
        self.note_tool_return(call_id, returned)
        await self.ctx.flush()

    def note_tool_return(self, call_id: str, returned: JsonObject) -> None:
        """The same without waiting."""
        call = self._open.pop(call_id, None)
        if call is not None and self.ctx.llm.advertises(_TOOL_EVENTS):
            self.ctx.record_tool_return(call.agent_id, call.name, self._id(call), returned)

    async def refused_tool(self, call: ToolCall, message: str) -> None:
        """A person did not allow a call, so it was not made."""
        if self.ctx.llm.advertises(_TOOL_EVENTS):
            error = {"code": "interrupt_rejected", "message": message or "a person said no"}
            call_id = self._id(call)
            self.ctx.announce_tool_call(call.agent_id, call.name, call_id, plain(call.arguments))
            refusal: JsonObject = {"status": "forbidden", "error": error}
            self.ctx.record_tool_return(call.agent_id, call.name, call_id, refusal)
            await self.ctx.flush()

    def leave_open(self, call_id: str) -> None:
        """A tool call waits for a person: it returns in a later call of the node."""
        self._open.pop(call_id, None)

    def fail_open_calls(self, error: BaseException) -> None:
        """Whatever was under way when the framework failed did not return."""
        for call_id in tuple(self._open):
            self.note_tool_return(call_id, failed(error))

    async def hands_over(self, from_agent: str, to_agent: str) -> None:
        """One agent of the framework hands over to another."""
        self.note_hand_over(from_agent, to_agent)
        await self.ctx.flush()

    def note_hand_over(self, from_agent: str, to_agent: str) -> None:
        """The same without waiting."""
        if from_agent != to_agent and self.ctx.llm.advertises(_HANDOFF):
            self.ctx.emit(_HANDOFF, {"fromAgentId": from_agent, "toAgentId": to_agent})

    def _id(self, call: ToolCall) -> str:
        """The call's id on the log: the framework's own is unique in this node only."""
        ctx = self.ctx
        visit = f".{ctx.visit}" if ctx.visit else ""
        return f"call-{ctx.node_id}{visit}-{call.call_id}"


def failed(error: BaseException) -> JsonObject:
    """The return of a tool that raised."""
    message = f"{type(error).__name__}: {error}"
    return {"error": {"code": "tool_error", "message": message}}
