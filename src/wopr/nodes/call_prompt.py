"""`core.ai.callPrompt`: ask a model. Here the models are the deterministic mock providers."""

from __future__ import annotations

import anyio
import msgspec

from wopr.engine.outcome import Completed, NodeFailure, Outcome
from wopr.nodes.context import NodeContext
from wopr.nodes.mock_providers import (
    ProviderError,
    StreamText,
    ToolCalls,
    Usage,
    UsageOnly,
    script,
)
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.runs import MockProvider

PROVIDER = "mock"


class CallPromptConfig(Document, frozen=True, kw_only=True):
    """The prompt, and whether its answer is streamed."""

    prompt_id: NonEmpty
    expects_streaming: bool = False
    # The key of the fixture `conformance-mcp-tool-roundtrip`. Tools are called by `openwop.mcp.call`.
    mcp: JsonObject | Unset = UNSET


@node("core.ai.callPrompt")
async def call_prompt(ctx: NodeContext, config: CallPromptConfig, inputs: JsonObject) -> Outcome:
    """Call the run's mock provider, streaming what it says."""
    wanted = ctx.configurable.get("mockProvider")
    if wanted is None:
        raise NodeFailure(
            f"no model provider is configured for prompt {config.prompt_id}; "
            "a test key may set configurable.mockProvider",
            code="credential_required",
            retryable=False,
        )
    match script(msgspec.convert(wanted, MockProvider)):
        case StreamText() as spoken:
            return await _speak(ctx, spoken)
        case ToolCalls() as asked:
            return await _ask_for_tools(ctx, asked)
        case ProviderError() as broken:
            await anyio.sleep(broken.fail_after_ms / 1000)
            raise NodeFailure(broken.message, code=broken.code, retryable=broken.retryable)
        case UsageOnly() as counted:
            _report_usage(ctx, counted.model, counted.usage)
            return Completed({"text": "", "model": counted.model})


async def _speak(ctx: NodeContext, spoken: StreamText) -> Completed:
    usage = spoken.usage
    if isinstance(usage, Unset):
        said = len(spoken.tokens)
        usage = Usage(completion_tokens=said, total_tokens=said)
    # After a restart the tokens that are on the log already are not said again.
    for index in range(ctx.chunks, len(spoken.tokens)):
        await anyio.sleep(spoken.delay_ms_per_token / 1000)
        is_last = index == len(spoken.tokens) - 1
        meta = _meta(spoken.model, spoken.finish_reason, usage) if is_last else None
        _emit_chunk(ctx, spoken.tokens[index], is_last, meta)
        if spoken.delay_ms_per_token:
            await ctx.flush()
    _report_usage(ctx, spoken.model, usage)
    return Completed(
        {
            "text": "".join(spoken.tokens),
            "finishReason": spoken.finish_reason,
            "model": spoken.model,
        }
    )


async def _ask_for_tools(ctx: NodeContext, asked: ToolCalls) -> Completed:
    await anyio.sleep(asked.delay_ms_per_token / 1000)
    meta = _meta(asked.model, "tool_calls", asked.usage) | {"toolCalls": asked.tool_calls}
    _emit_chunk(ctx, "", True, meta)
    _report_usage(ctx, asked.model, asked.usage)
    return Completed(
        {"toolCalls": asked.tool_calls, "finishReason": "tool_calls", "model": asked.model}
    )


def _meta(model: str, finish_reason: str, usage: Usage) -> JsonObject:
    counts: Json = msgspec.to_builtins(usage)
    return {"finishReason": finish_reason, "model": model, "provider": PROVIDER, "usage": counts}


def _emit_chunk(ctx: NodeContext, chunk: str, is_last: bool, meta: JsonObject | None) -> None:
    payload: JsonObject = {
        "nodeId": ctx.node_id,
        "runId": ctx.run_id,
        "chunk": chunk,
        "isLast": is_last,
    }
    ctx.emit("output.chunk", payload if meta is None else payload | {"meta": meta})


def _report_usage(ctx: NodeContext, model: str, usage: Usage) -> None:
    ctx.emit(
        "provider.usage",
        {
            "provider": PROVIDER,
            "model": model,
            "inputTokens": usage.prompt_tokens,
            "outputTokens": usage.completion_tokens,
            "totalTokens": usage.total_tokens,
            "nodeId": ctx.node_id,
        },
    )
