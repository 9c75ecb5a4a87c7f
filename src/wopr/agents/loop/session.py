"""A model session: the requests of one node to a model, within a budget, streamed to the log.

Every answer is recorded. After a crash the session uses the recorded answers and continues with the
first request without an answer. Events that are on the log are not emitted again.
"""

from __future__ import annotations

from typing import Final, Literal

import anyio
import msgspec

from wopr.agents.loop.config import Budget
from wopr.agents.loop.context import AgentContext, BudgetUsage, Caps
from wopr.agents.loop.request_plan import RequestPlan
from wopr.agents.models.port import (
    Message,
    ModelAnswer,
    ModelFault,
    ModelRequest,
    Models,
    ModelUsage,
    RequestOptions,
)
from wopr.agents.models.request_key import request_key
from wopr.engine.outcome import Breached, NodeFailure
from wopr.engine.replay import REQUEST_KEY
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.runs import RunError

# The minimum usage of a model call. The real usage is known after the call.
ONE_CALL: Final = BudgetUsage(tokens=1, cost_usd=0.000001, calls=1)
ONE_TOOL_CALL: Final = BudgetUsage(tool_calls=1)
NO_USAGE: Final = BudgetUsage()

# Each counted quantity with the kind of its cap and the error code of a run that exceeds it.
_COUNTED: Final = (
    ("tokens", "budget-tokens", "token_budget_exceeded"),
    ("cost_usd", "budget-cost", "budget_exhausted"),
    ("calls", "envelopes", "budget_exhausted"),
    ("tool_calls", "budget-tool-calls", "budget_exhausted"),
)
# The names of the quantities in messages.
_QUANTITIES: Final = {
    "tokens": "tokens",
    "cost_usd": "US dollars",
    "calls": "model requests",
    "tool_calls": "tool calls",
}


def caps_of(budget: Budget) -> Caps:
    """Return the caps of a node's budget."""
    return Caps(
        tokens=None if isinstance(budget.max_tokens, Unset) else budget.max_tokens,
        cost_usd=None if isinstance(budget.max_cost_usd, Unset) else budget.max_cost_usd,
        calls=budget.max_calls,
        tool_calls=None if isinstance(budget.max_tool_calls, Unset) else budget.max_tool_calls,
    )


def exceeded_cap(
    spent: BudgetUsage, caps: Caps, scope: str, wanted: BudgetUsage = NO_USAGE
) -> Breached | None:
    """Return the first cap that the usage and the wanted usage exceed together, or None.

    With `wanted`, only its quantities are checked: a model may still answer after the last allowed
    tool call.
    """
    total = spent + wanted
    for name, kind, code in _COUNTED:
        limit: float | None = getattr(caps, name)
        observed: float = getattr(total, name)
        is_concerned = getattr(wanted, name) > 0 or wanted == NO_USAGE
        if limit is not None and is_concerned and observed > limit:
            allowed = f"The {scope} may use {limit:g} {_QUANTITIES[name]}"
            error = RunError(
                code=code, message=f"{allowed}, but needs {observed:g}.", retryable=False
            )
            return Breached(kind=kind, limit=limit, observed=observed, error=error, scope=scope)
    return None


# Pieces that arrive within this time are logged together.
_FLUSH_SECONDS: Final = 0.05
_FINISHED: Final = frozenset({"stop", "length", "tool_calls", "content_filter"})


class AnswerStream:
    """Streams one answer to the run's log, redacted and in pieces."""

    def __init__(self, ctx: AgentContext, agent_id: str, *, shows_text: bool) -> None:
        self._ctx = ctx
        self._agent_id = agent_id
        is_private = ctx.llm.is_private
        self._shows_text = shows_text and not is_private
        self._shows_reasoning = not is_private and ctx.verbosity != "off"
        self._streams_reasoning = self._shows_reasoning and ctx.llm.advertises(
            "agent.reasoning.delta"
        )
        self.restart()

    def restart(self) -> None:
        """Drop the received pieces, because the request is made again."""
        self._text_stream = self._ctx.llm.text_stream()
        self._reasoning_stream = self._ctx.llm.text_stream()
        self._text = ""
        self._reasoning = ""
        self._deltas = 0
        self._emitted_bytes = 0
        self.has_emitted = False
        self._flushed_at = anyio.current_time()

    async def receive(self, kind: Literal["text", "reasoning"], piece: str) -> None:
        """Add a piece, and log the collected pieces if enough time has passed."""
        if kind == "text" and self._shows_text:
            self._text += self._text_stream.feed(piece)
        elif kind == "reasoning" and self._streams_reasoning:
            self._reasoning += self._reasoning_stream.feed(piece)
        now = anyio.current_time()
        if now - self._flushed_at >= _FLUSH_SECONDS and (self._text or self._reasoning):
            self._flushed_at = now
            self._emit_reasoning()
            self._emit_text()
            await self._ctx.flush()

    def finish(self, answer: ModelAnswer, provider: str) -> None:
        """Log the rest, and close the reasoning and the text."""
        if self._shows_reasoning and (reasoning := reasoning_of(answer)):
            self._reasoning += self._reasoning_stream.close()
            self._emit_reasoning()
            self._ctx.reason(self._agent_id, reasoning)
        if self._shows_text and (answer.text or not answer.tool_calls):
            rest = self._text + self._text_stream.close() if self._has_received else answer.text
            self._text = ""
            self._emit_chunk(rest, meta=_meta(answer, provider))

    @property
    def _has_received(self) -> bool:
        return self.has_emitted or bool(self._text)

    def _emit_reasoning(self) -> None:
        piece, self._reasoning = self._reasoning, ""
        limit = self._ctx.llm.reasoning_bytes
        if not piece or (limit is not None and self._emitted_bytes >= limit):
            return
        self._emitted_bytes += len(piece.encode("utf-8", "replace"))
        self.has_emitted = True
        delta: JsonObject = {"agentId": self._agent_id, "delta": piece, "sequence": self._deltas}
        self._ctx.emit("agent.reasoning.delta", delta | {"verbosity": self._ctx.verbosity})
        self._deltas += 1

    def _emit_text(self) -> None:
        piece, self._text = self._text, ""
        if piece:
            self.has_emitted = True
            self._emit_chunk(piece)

    def _emit_chunk(self, piece: str, meta: JsonObject | None = None) -> None:
        payload: JsonObject = {
            "nodeId": self._ctx.node_id,
            "runId": self._ctx.origin_run_id,
            "chunk": piece,
            "isLast": meta is not None,
        }
        self._ctx.emit("output.chunk", payload if meta is None else payload | {"meta": meta})


def reasoning_of(answer: ModelAnswer) -> str:
    """Return the model's reasoning, or else its text if it also calls tools."""
    return answer.reasoning or (answer.text if answer.tool_calls else "")


def _meta(answer: ModelAnswer, provider: str) -> JsonObject:
    usage = answer.usage
    meta: JsonObject = {
        "model": answer.model,
        "provider": provider,
        "usage": {
            "promptTokens": usage.input_tokens,
            "completionTokens": usage.output_tokens,
            "totalTokens": usage.input_tokens + usage.output_tokens,
        },
    }
    if answer.finish_reason in _FINISHED:
        meta["finishReason"] = answer.finish_reason
    return meta


FIRST_DELAY_SECONDS: Final = 0.5
# If a provider requests a longer delay, the node fails. The node may be retried.
LONGEST_DELAY_SECONDS: Final = 60.0


class BudgetExceeded(Exception):
    """A cap was exceeded. The node ends with the outcome `breached`."""

    def __init__(self, breached: Breached) -> None:
        super().__init__(breached.error.message)
        self.breached = breached


class ModelSession:
    """The requests of one node, within its budget and the run's."""

    def __init__(self, ctx: AgentContext, plan: RequestPlan, models: Models) -> None:
        self.plan = plan
        self.ctx = ctx
        self._models = models
        self._caps = caps_of(plan.config.budget)
        self._requests = 0
        # Usage of this node, and the part of it that is not on the log yet.
        self._own = NO_USAGE
        self._unlogged = NO_USAGE

    def emit_if_advertised(self, event_type: str, payload: JsonObject) -> None:
        """Emit an event if the host advertises its type."""
        if self.ctx.llm.advertises(event_type):
            self.ctx.emit(event_type, payload)

    def require(self, wanted: BudgetUsage) -> None:
        """Raise `BudgetExceeded` if the usage so far and the wanted usage exceed a cap."""
        found = exceeded_cap(self._own, self._caps, "node", wanted) or exceeded_cap(
            self.ctx.llm.spent + self._unlogged, self.ctx.llm.caps, "run", wanted
        )
        if found is not None:
            raise BudgetExceeded(found)

    def count_tool_call(self) -> None:
        """Count a tool call. Its events and all earlier ones are on the log."""
        self._own += BudgetUsage(tool_calls=1)
        self._unlogged = NO_USAGE

    async def ask(self, further: tuple[Message, ...]) -> tuple[ModelAnswer, bool]:
        """Make the next request, or use its recorded answer.

        Returns the answer, and whether it is new. Raises `BudgetExceeded` if the request has no
        budget, or used more than its budget.
        """
        number, self._requests = self._requests, self._requests + 1
        is_new = number >= self.ctx.llm.logged_calls
        if is_new:
            self.require(ONE_CALL)
        request = self.plan.request(further)
        key = request_key(request)
        stream = AnswerStream(
            self.ctx, self.plan.agent_id, shows_text=isinstance(request.response_schema, Unset)
        )

        async def effect() -> Json:
            answer = await self._ask_with_retries(request, stream)
            redacted: Json = await self.ctx.llm.redact(msgspec.to_builtins(answer))
            return {REQUEST_KEY: key, "answer": redacted}

        recorded = await self.ctx.once(f"llm:{request.provider}:{request.model}", effect)
        answer = msgspec.convert(recorded["answer"], ModelAnswer)
        self._count(answer, is_new)
        if is_new:
            stream.finish(answer, request.provider)
            self._record(answer, key, is_same=recorded[REQUEST_KEY] == key, number=number)
            self.require(NO_USAGE)
        return answer, is_new

    def _count(self, answer: ModelAnswer, is_new: bool) -> None:
        usage = answer.usage
        used = BudgetUsage(
            tokens=usage.input_tokens + usage.output_tokens,
            cost_usd=usage.cost_usd or 0.0,
            calls=1,
        )
        self._own += used
        if is_new:
            self._unlogged += used

    def _record(self, answer: ModelAnswer, key: str, *, is_same: bool, number: int) -> None:
        """Log the request and its usage. The answer is on the log already."""
        plan = self.plan
        self.ctx.log(
            "debug", f"asked {plan.provider}:{plan.model}", **{REQUEST_KEY: key}, request=number
        )
        if not is_same:
            self.ctx.log(
                "warn",
                "The prompt has changed since the answer was recorded. "
                "The recorded answer is used.",
            )
        model = answer.model or plan.model
        usage = usage_payload(plan.provider, model, answer.usage, self.ctx.node_id)
        self.emit_if_advertised("provider.usage", usage)

    async def _ask_with_retries(self, request: ModelRequest, stream: AnswerStream) -> ModelAnswer:
        """Repeat the request after a retryable failure, as often as the config allows."""
        max_retries = self.plan.config.max_retries
        for attempt in range(max_retries + 1):
            try:
                return await self._ask_once(request, stream)
            except ModelFault as fault:
                delay = fault.retry_after or FIRST_DELAY_SECONDS * 2**attempt
                is_last = attempt == max_retries or delay > LONGEST_DELAY_SECONDS
                if fault.error.retryable is False or is_last:
                    raise
                await self._wait(fault, delay)
                stream.restart()
        raise AssertionError("the last attempt returns or raises")

    async def _wait(self, fault: ModelFault, delay: float) -> None:
        self.ctx.log("warn", f"{fault.error.message}; next attempt in {delay:g} s")
        # Readers see the warning during the wait.
        await self.ctx.flush()
        await anyio.sleep(delay)

    async def _ask_once(self, request: ModelRequest, stream: AnswerStream) -> ModelAnswer:
        config = self.plan.config
        seconds = config.timeout_ms / 1000
        options = RequestOptions(
            tenant=self.ctx.tenant,
            credentials_ref=self.ctx.llm.credentials_ref,
            timeout_seconds=seconds,
            on_delta=stream.receive if config.stream else None,
        )
        try:
            with anyio.fail_after(seconds):
                return await self._models.ask(request, options)
        except TimeoutError as late:
            message = f"{request.provider} did not answer within {seconds:g} s"
            raise ModelFault(message, code="model_timeout") from late


def usage_payload(provider: str, model: str, usage: ModelUsage, node_id: str) -> JsonObject:
    """Return the payload of `provider.usage`; the cost only if the price is known."""
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


def plan_for_capable_model(ctx: AgentContext, plan: RequestPlan, models: Models) -> RequestPlan:
    """Return the plan with a model that has the required capabilities: its own or the fallback.

    A model whose capabilities are not known is used without a check.
    """
    missing = _missing_capabilities(plan, models)
    if not missing:
        return plan
    about: JsonObject = {"nodeId": ctx.node_id, "missingCapabilities": missing}
    fallback = plan.config.fallback_model
    other = plan if isinstance(fallback, Unset) else plan.with_model(fallback)
    if not isinstance(fallback, Unset) and not _missing_capabilities(other, models):
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


def _missing_capabilities(plan: RequestPlan, models: Models) -> list[str]:
    known = models.capabilities(plan.provider, plan.model)
    return [] if known is None else [name for name in plan.config.requires if name not in known]
