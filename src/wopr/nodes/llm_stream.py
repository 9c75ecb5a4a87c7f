"""An answer on its way to the log: pieces as they come, without secrets, then the whole."""

from __future__ import annotations

from typing import Final, Literal

import anyio

from wopr.nodes.context import NodeContext
from wopr.nodes.models import ModelAnswer
from wopr.protocol.documents import JsonObject

# Pieces that come closer together go to the log as one.
_EVERY_SECONDS: Final = 0.05
_FINISHED: Final = frozenset({"stop", "length", "tool_calls", "content_filter"})


class Broadcast:
    """One answer as readers of the run see it."""

    def __init__(self, ctx: NodeContext, agent_id: str, *, shows_text: bool) -> None:
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
        """Forget what was heard: the answer is asked for again."""
        self._text_stream = self._ctx.llm.text_stream()
        self._reasoning_stream = self._ctx.llm.text_stream()
        self._text = ""
        self._reasoning = ""
        self._deltas = 0
        self._told_bytes = 0
        self.has_spoken = False
        self._shown_at = anyio.current_time()

    async def hear(self, kind: Literal["text", "reasoning"], piece: str) -> None:
        """Take a piece, and show what has come together when it is time."""
        if kind == "text" and self._shows_text:
            self._text += self._text_stream.feed(piece)
        elif kind == "reasoning" and self._streams_reasoning:
            self._reasoning += self._reasoning_stream.feed(piece)
        now = anyio.current_time()
        if now - self._shown_at >= _EVERY_SECONDS and (self._text or self._reasoning):
            self._shown_at = now
            self._tell_reasoning()
            self._tell_text()
            await self._ctx.flush()

    def finish(self, answer: ModelAnswer, provider: str) -> None:
        """Show the rest, and close both the reasoning and the text."""
        if self._shows_reasoning and (thought := thought_of(answer)):
            self._reasoning += self._reasoning_stream.close()
            self._tell_reasoning()
            self._ctx.reason(self._agent_id, thought)
        if self._shows_text and (answer.text or not answer.tool_calls):
            rest = self._text + self._text_stream.close() if self._has_heard else answer.text
            self._text = ""
            self._chunk(rest, meta=_meta(answer, provider))

    @property
    def _has_heard(self) -> bool:
        return self.has_spoken or bool(self._text)

    def _tell_reasoning(self) -> None:
        piece, self._reasoning = self._reasoning, ""
        limit = self._ctx.llm.reasoning_bytes
        if not piece or (limit is not None and self._told_bytes >= limit):
            return
        self._told_bytes += len(piece.encode("utf-8", "replace"))
        self.has_spoken = True
        delta: JsonObject = {"agentId": self._agent_id, "delta": piece, "sequence": self._deltas}
        self._ctx.emit("agent.reasoning.delta", delta | {"verbosity": self._ctx.verbosity})
        self._deltas += 1

    def _tell_text(self) -> None:
        piece, self._text = self._text, ""
        if piece:
            self.has_spoken = True
            self._chunk(piece)

    def _chunk(self, piece: str, meta: JsonObject | None = None) -> None:
        payload: JsonObject = {
            "nodeId": self._ctx.node_id,
            "runId": self._ctx.origin_run_id,
            "chunk": piece,
            "isLast": meta is not None,
        }
        self._ctx.emit("output.chunk", payload if meta is None else payload | {"meta": meta})


def thought_of(answer: ModelAnswer) -> str:
    """Why the model does what it does next: its reasoning, or what it says beside its tool calls."""
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
