"""A conversation with a model: every request and every tool call is one recorded step.

After a crash the steps that are on record are taken from there, and the conversation goes on with
the first one that is not. What a step put on the log it does not put there again.
"""

from __future__ import annotations

from typing import Final

import anyio
import msgspec

from wopr.engine.outcome import Breached, NodeFailure
from wopr.engine.replay import REQUEST_KEY
from wopr.nodes.context import NodeContext
from wopr.nodes.llm_budget import NOTHING, ONE_CALL, breach, caps_of
from wopr.nodes.llm_context import Spent
from wopr.nodes.llm_key import request_key
from wopr.nodes.llm_plan import Plan
from wopr.nodes.llm_stream import Broadcast
from wopr.nodes.models import (
    Asking,
    Message,
    ModelAnswer,
    ModelFault,
    ModelRequest,
    Models,
    ModelUsage,
)
from wopr.protocol.documents import Json, JsonObject, Unset

FIRST_DELAY_SECONDS: Final = 0.5
# A provider that wants us to stay away longer than this fails the node, which may be retried.
LONGEST_DELAY_SECONDS: Final = 60.0


class BudgetSpent(Exception):
    """A cap was broken; the node ends with the breach."""

    def __init__(self, breached: Breached) -> None:
        super().__init__(breached.error.message)
        self.breached = breached


class Talk:
    """One node's conversation, within its budget and the run's."""

    def __init__(self, ctx: NodeContext, plan: Plan, models: Models) -> None:
        self.plan = plan
        self.ctx = ctx
        self._models = models
        self._caps = caps_of(plan.config.budget)
        self._asked = 0
        # What this node has used, and the part of it that is not on the log yet.
        self._own = NOTHING
        self._unlogged = NOTHING

    def tell(self, event_type: str, payload: JsonObject) -> None:
        """Emit an event where the host advertises events of its kind."""
        if self.ctx.llm.advertises(event_type):
            self.ctx.emit(event_type, payload)

    def require(self, wanted: Spent) -> None:
        """Raise `BudgetSpent` unless so much may still be used, or no more was used than allowed."""
        found = breach(self._own, self._caps, "node", wanted) or breach(
            self.ctx.llm.spent + self._unlogged, self.ctx.llm.caps, "run", wanted
        )
        if found is not None:
            raise BudgetSpent(found)

    def used_tool(self) -> None:
        """Count a tool call, whose events are on the log with all that came before it."""
        self._own += Spent(tool_calls=1)
        self._unlogged = NOTHING

    async def ask(self, further: tuple[Message, ...]) -> tuple[ModelAnswer, bool]:
        """Ask once more, or take the recorded answer; the flag says whether it is news to the log.

        Raises `BudgetSpent` when there is no budget for it, or it took more than there was.
        """
        place, self._asked = self._asked, self._asked + 1
        is_new = place >= self.ctx.llm.logged_calls
        if is_new:
            self.require(ONE_CALL)
        request = self.plan.request(further)
        key = request_key(request)
        broadcast = Broadcast(
            self.ctx, self.plan.agent_id, shows_text=isinstance(request.response_schema, Unset)
        )

        async def effect() -> Json:
            answer = await self._insist(request, broadcast)
            said: Json = await self.ctx.llm.redact(msgspec.to_builtins(answer))
            return {REQUEST_KEY: key, "answer": said}

        recorded = await self.ctx.once(f"llm:{request.provider}:{request.model}", effect)
        answer = msgspec.convert(recorded["answer"], ModelAnswer)
        self._count(answer, is_new)
        if is_new:
            broadcast.finish(answer, request.provider)
            self._record(answer, key, is_same=recorded[REQUEST_KEY] == key, place=place)
            self.require(NOTHING)
        return answer, is_new

    def _count(self, answer: ModelAnswer, is_new: bool) -> None:
        usage = answer.usage
        used = Spent(
            tokens=usage.input_tokens + usage.output_tokens,
            cost_usd=usage.cost_usd or 0.0,
            calls=1,
        )
        self._own += used
        if is_new:
            self._unlogged += used

    def _record(self, answer: ModelAnswer, key: str, *, is_same: bool, place: int) -> None:
        """Put what was asked and what it cost on the log; the answer itself is there already."""
        plan = self.plan
        about = f"{plan.provider}:{plan.model}"
        self.ctx.log("debug", f"asked {about}", **{REQUEST_KEY: key}, request=place)
        if not is_same:
            self.ctx.log("warn", "the prompt has changed since; the recorded answer is used")
        model = answer.model or plan.model
        usage = usage_payload(plan.provider, model, answer.usage, self.ctx.node_id)
        self.tell("provider.usage", usage)

    async def _insist(self, request: ModelRequest, broadcast: Broadcast) -> ModelAnswer:
        """Ask until there is an answer, as often as the config allows."""
        most = self.plan.config.max_retries
        for attempt in range(most + 1):
            try:
                return await self._ask_once(request, broadcast)
            except ModelFault as fault:
                delay = fault.retry_after or FIRST_DELAY_SECONDS * 2**attempt
                is_last = attempt == most or delay > LONGEST_DELAY_SECONDS
                if fault.error.retryable is False or is_last:
                    raise
                await self._wait(fault, delay)
                broadcast.restart()
        raise AssertionError("the last attempt returns or raises")

    async def _wait(self, fault: ModelFault, delay: float) -> None:
        self.ctx.log("warn", f"{fault.error.message}; asking again in {delay:g} s")
        # Out of here after a kill: the request is simply made anew.
        await self.ctx.flush()
        await anyio.sleep(delay)

    async def _ask_once(self, request: ModelRequest, broadcast: Broadcast) -> ModelAnswer:
        config = self.plan.config
        seconds = config.timeout_ms / 1000
        asking = Asking(
            tenant=self.ctx.tenant,
            credentials_ref=self.ctx.llm.credentials_ref,
            timeout_seconds=seconds,
            on_delta=broadcast.hear if config.stream else None,
        )
        try:
            with anyio.fail_after(seconds):
                return await self._models.ask(request, asking)
        except TimeoutError as late:
            message = f"{request.provider} gave no answer within {seconds:g} s"
            raise ModelFault(message, code="model_timeout") from late


def usage_payload(provider: str, model: str, usage: ModelUsage, node_id: str) -> JsonObject:
    """What a call cost: counts only, and money where the price is known."""
    payload: JsonObject = {
        "provider": provider,
        "model": model,
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
        "nodeId": node_id,
    }
    if usage.cost_usd is not None:
        payload |= {"costEstimateUsd": usage.cost_usd, "currency": "USD"}
    if usage.cache_read_tokens:
        payload["cacheReadTokens"] = usage.cache_read_tokens
    if usage.cache_write_tokens:
        payload["cacheWriteTokens"] = usage.cache_write_tokens
    return payload


def fitting(ctx: NodeContext, plan: Plan, models: Models) -> Plan:
    """The plan with a model that can do what the node requires: its own, or the one to fall back on.

    Where a model's abilities are not known, the node's author is believed.
    """
    missing = _missing(plan, models)
    if not missing:
        return plan
    about: JsonObject = {"nodeId": ctx.node_id, "missingCapabilities": missing}
    fallback = plan.config.fallback_model
    other = plan if isinstance(fallback, Unset) else plan.with_model(fallback)
    if not isinstance(fallback, Unset) and not _missing(other, models):
        if ctx.llm.advertises("model.capability.substituted") and not ctx.llm.logged_calls:
            names = {"originalProvider": plan.provider, "originalModel": plan.model}
            names |= {"fallbackProvider": other.provider, "fallbackModel": other.model}
            ctx.emit("model.capability.substituted", about | names)
        return other
    about |= {"provider": plan.provider, "model": plan.model}
    if ctx.llm.advertises("model.capability.insufficient"):
        attempted = not isinstance(fallback, Unset)
        ctx.emit("model.capability.insufficient", about | {"fallbackAttempted": attempted})
    raise NodeFailure(
        f"{plan.provider}:{plan.model} lacks {', '.join(missing)}",
        code="capability_not_provided",
        retryable=False,
        details={"missing": missing},
    )


def _missing(plan: Plan, models: Models) -> list[str]:
    able = models.capabilities(plan.provider, plan.model)
    return [] if able is None else [need for need in plan.config.requires if need not in able]
