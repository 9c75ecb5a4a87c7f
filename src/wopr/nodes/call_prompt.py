"""`core.ai.callPrompt`: call the mock provider of the run."""

from __future__ import annotations

import anyio
import msgspec

from wopr.agents.models.mock import (
    MockError,
    MockText,
    MockToolCalls,
    MockUsage,
    MockUsageOnly,
    read_script,
)
from wopr.engine.outcome import Completed, NodeFailure, Outcome
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import UNSET, Document, Json, JsonObject, NonEmpty, Unset
from wopr.protocol.runs import MockProvider

PROVIDER = "mock"


class CallPromptConfig(Document, frozen=True, kw_only=True):
    """The prompt, and whether its response is streamed."""

    prompt_id: NonEmpty
    expects_streaming: bool = False
    # The fixture `conformance-mcp-tool-roundtrip` has this key. `openwop.mcp.call` calls the tools.
    mcp: JsonObject | Unset = UNSET


@node("core.ai.callPrompt")
async def call_prompt(ctx: NodeContext, config: CallPromptConfig, inputs: JsonObject) -> Outcome:
    """Call the mock provider of the run and stream its response."""
    wanted = ctx.configurable.get("mockProvider")
    if wanted is None:
        raise NodeFailure(
            f"no model provider is configured for prompt {config.prompt_id}; "
            "a test key may set configurable.mockProvider",
            code="credential_required",
            retryable=False,
        )
    match read_script(msgspec.convert(wanted, MockProvider)):
        case MockText() as text:
            return await _stream_text(ctx, text)
        case MockToolCalls() as calls:
            return await _request_tools(ctx, calls)
        case MockError() as error:
            await anyio.sleep(error.fail_after_ms / 1000)
            raise NodeFailure(error.message, code=error.code, retryable=error.retryable)
        case MockUsageOnly() as silent:
            _report_usage(ctx, silent.model, silent.usage)
            return Completed({"text": "", "model": silent.model})


async def _stream_text(ctx: NodeContext, script: MockText) -> Completed:
    usage = script.usage
    if isinstance(usage, Unset):
        count = len(script.tokens)
        usage = MockUsage(completion_tokens=count, total_tokens=count)
    # After a restart, tokens that are on the log already are not emitted again.
    for index in range(ctx.chunks, len(script.tokens)):
        await anyio.sleep(script.delay_ms_per_token / 1000)
        is_last = index == len(script.tokens) - 1
        meta = _meta(script.model, script.finish_reason, usage) if is_last else None
        _emit_chunk(ctx, script.tokens[index], is_last, meta)
        if script.delay_ms_per_token:
            await ctx.flush()
    _report_usage(ctx, script.model, usage)
    return Completed(
        {
            "text": "".join(script.tokens),
            "finishReason": script.finish_reason,
            "model": script.model,
        }
    )


async def _request_tools(ctx: NodeContext, script: MockToolCalls) -> Completed:
    await anyio.sleep(script.delay_ms_per_token / 1000)
    meta = _meta(script.model, "tool_calls", script.usage) | {"toolCalls": script.tool_calls}
    _emit_chunk(ctx, "", True, meta)
    _report_usage(ctx, script.model, script.usage)
    return Completed(
        {"toolCalls": script.tool_calls, "finishReason": "tool_calls", "model": script.model}
    )


def _meta(model: str, finish_reason: str, usage: MockUsage) -> JsonObject:
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


def _report_usage(ctx: NodeContext, model: str, usage: MockUsage) -> None:
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
