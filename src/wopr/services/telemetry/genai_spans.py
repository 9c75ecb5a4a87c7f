"""GenAI spans of a run, read from its log: agents, requests to models, and tool calls.

Attribute names are a fixed list: those of OpenTelemetry's GenAI conventions. Spans contain the text
of models and tools only if the operator enables it. The text is that of the log: redacted, and
without masked values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from wopr.protocol.documents import Json, JsonObject, encode, object_of, to_millis
from wopr.protocol.events import RunEvent
from wopr.protocol.payload_members import (
    SYSTEM,
    acting_agent_id,
    from_agent,
    node_id_of,
    number_member,
    text_member,
    tool_name_of,
)

Value: TypeAlias = str | int | float | bool | Sequence[str]
Attributes: TypeAlias = dict[str, Value]

OPERATION: Final = "gen_ai.operation.name"
EVALUATION: Final = "gen_ai.evaluation.result"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
OUTPUT: Final = "gen_ai.output.messages"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
# Providers that have another name in the conventions.
_PROVIDERS: Final = {"google": "gcp.gen_ai"}
MAX_CONTENT: Final = 8192


def agent_attributes(agent_id: str, payload: JsonObject) -> Attributes:
    """Return the attributes of an invocation of an agent, from its first event."""
    agent = object_of(payload.get("agent"))
    return _without_none(
        {
            OPERATION: "invoke_agent",
            "gen_ai.agent.id": agent_id,
            "gen_ai.agent.name": text_member(agent, "name") or agent_id,
            "gen_ai.agent.version": text_member(payload, "resolvedAgentVersion")
            or text_member(agent, "version"),
            "gen_ai.provider.name": provider_name(text_member(payload, "resolvedProvider")),
            "gen_ai.request.model": text_member(payload, "resolvedModel"),
        }
    )


def chat_attributes(usage: JsonObject, requested: str | None) -> Attributes:
    """Return the attributes of a request to a model, from its usage."""
    provider, model = text_member(usage, "provider"), text_member(usage, "model")
    input_tokens, output_tokens = (
        number_member(usage, "inputTokens"),
        number_member(usage, "outputTokens"),
    )
    usd = number_member(usage, "costEstimateUsd")
    return _without_none(
        {
            OPERATION: "chat",
            "gen_ai.provider.name": provider_name(provider),
            "gen_ai.request.model": requested or model,
            "gen_ai.response.model": model,
            INPUT_TOKENS: input_tokens,
            OUTPUT_TOKENS: output_tokens,
            "gen_ai.usage.cache_read.input_tokens": number_member(usage, "cacheReadTokens"),
            "gen_ai.usage.cache_creation.input_tokens": number_member(usage, "cacheWriteTokens"),
            "openwop.cost.provider": provider,
            "openwop.cost.tokens.input": input_tokens,
            "openwop.cost.tokens.output": output_tokens,
            "openwop.cost.tokens.total": number_member(usage, "totalTokens"),
            "openwop.cost.usd": usd,
            "openwop.cost.currency": text_member(usage, "currency"),
            "openwop.cost.estimated": None if usd is None else True,
        }
    )


def tool_attributes(called: JsonObject) -> Attributes:
    """Return the attributes of a tool call."""
    return _without_none(
        {
            OPERATION: "execute_tool",
            "gen_ai.tool.name": tool_name_of(called) or "unknown",
            "gen_ai.tool.call.id": text_member(called, "callId"),
            "gen_ai.tool.type": "function",
        }
    )


def evaluation_attributes(name: str, label: str, score: float | None = None) -> Attributes:
    """Return the attributes of an evaluation, without its text."""
    return _without_none(
        {
            "gen_ai.evaluation.name": name,
            "gen_ai.evaluation.score.label": label,
            "gen_ai.evaluation.score.value": score,
        }
    )


def assistant_message(content: str) -> str:
    """Encode the text of a model as a message."""
    part = {"type": "text", "content": content[:MAX_CONTENT]}
    return encode([{"role": "assistant", "parts": [part]}]).decode()


def value_text(value: Json) -> str:
    """Encode a value as text of limited length."""
    return (value if isinstance(value, str) else encode(value).decode())[:MAX_CONTENT]


def provider_name(provider: str | None) -> str | None:
    """Return the name that the conventions have for a provider."""
    return None if provider is None else _PROVIDERS.get(provider, provider)


def _without_none(attributes: dict[str, Value | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


_NODE_ENDS: Final = frozenset({"node.completed", "node.failed", "node.skipped", "node.cancelled"})
# Events after which the next request to a model begins.
_STEPS: Final = frozenset({"node.started", "node.resumed", "agent.invocation.started"})
_CUT_OFF: Final = {"envelope.truncated": "length", "envelope.refusal": "content_filter"}
SPAN_EVENT_TYPES: Final = frozenset(
    {
        *_NODE_ENDS,
        *_STEPS,
        *_CUT_OFF,
        "provider.usage",
        "output.chunk",
        "eval.scored",
        "runOrchestrator.decided",
        *(
            f"agent.{act}"
            for act in (
                "reasoned",
                "toolCalled",
                "toolReturned",
                "handoff",
                "decided",
                "verified",
                "invocation.completed",
            )
        ),
    }
)


@dataclass(slots=True)
class SpanDraft:
    """A span to be exported, with times in milliseconds."""

    name: str
    node_id: str
    start: int
    end: int
    attributes: Attributes
    calls_outside: bool = False
    children: list[SpanDraft] = field(default_factory=list["SpanDraft"])
    evaluations: list[tuple[int, Attributes]] = field(default_factory=list[tuple[int, Attributes]])

    def fail(self, code: str) -> None:
        """Set the error code, unless there is one already."""
        self.attributes.setdefault(ERROR_TYPE, code)


@dataclass(slots=True)
class _Node:
    """The open spans of a node while the log is read."""

    # When the next request to a model begins.
    request_start: int
    agents: dict[str, SpanDraft] = field(default_factory=dict[str, SpanDraft])
    # The agent that acted last.
    agent: SpanDraft | None = None
    calls: dict[str, SpanDraft] = field(default_factory=dict[str, SpanDraft])
    chat: SpanDraft | None = None
    # The finish reason and the text streamed so far of the current response of a model.
    finish: str = ""
    streamed: str = ""


class RunSpans:
    """The spans of one run, built event by event. `spans` are children of the node spans."""

    def __init__(self, *, with_content: bool = False) -> None:
        self.spans: list[SpanDraft] = []
        self.evaluations: list[tuple[int, Attributes]] = []
        self._with_content = with_content
        self._nodes: dict[str, _Node] = {}

    def add(self, event: RunEvent) -> None:
        """Add the next event of the log."""
        at, payload = to_millis(event.timestamp), object_of(event.payload)
        if event.type == "eval.scored":
            label = "pass" if payload.get("passed") is True else "fail"
            name = text_member(payload, "taskId") or "unknown"
            self.evaluations.append(
                (at, evaluation_attributes(name, label, number_member(payload, "score")))
            )
            return
        node_id = node_id_of(event)
        if node_id is None:
            return
        if event.type == "node.started":
            self._close(node_id, at)
        node = self._nodes.setdefault(node_id, _Node(at))
        if event.type in _STEPS:
            node.request_start = at
        self._find_agent(node, node_id, event.type, payload, at)
        self._add_to_node(node, node_id, event.type, payload, at)
        if event.type in _NODE_ENDS:
            code = text_member(object_of(payload.get("error")), "code")
            self._close(node_id, at, code or ("error" if event.type == "node.failed" else None))

    def finish(self, at: int, error: str | None = None) -> None:
        """Close the open spans at the end of the run."""
        for node_id in list(self._nodes):
            self._close(node_id, at, error)

    def _find_agent(
        self, node: _Node, node_id: str, event_type: str, payload: JsonObject, at: int
    ) -> None:
        """Record the agent that acts. Its first event opens its span."""
        is_act = event_type.startswith(("agent.", "runOrchestrator.")) or event_type in _STEPS
        name = from_agent(payload) if event_type == "agent.handoff" else acting_agent_id(payload)
        if not is_act or name is None or name == SYSTEM:
            return
        attributes = agent_attributes(name, payload)
        draft = node.agents.get(name)
        if draft is None:
            draft = SpanDraft(f"invoke_agent {name}", node_id, at, at, attributes)
            node.agents[name] = draft
            self.spans.append(draft)
        elif event_type == "agent.invocation.started":
            draft.attributes |= attributes
        node.agent = draft

    def _add_to_node(
        self, node: _Node, node_id: str, event_type: str, payload: JsonObject, at: int
    ) -> None:
        match event_type:
            case "output.chunk":
                node.streamed += text_member(payload, "chunk") or ""
                node.finish = (
                    text_member(object_of(payload.get("meta")), "finishReason") or node.finish
                )
            case "provider.usage":
                self._add_chat(node, node_id, payload, at)
            case "agent.toolCalled":
                self._open_tool_call(node, node_id, payload, at)
            case "agent.toolReturned":
                self._close_tool_call(node, payload, at)
            case "agent.decided" if node.agent is not None and self._with_content:
                decision = payload.get("decision")
                node.agent.attributes[OUTPUT] = assistant_message(value_text(decision))
            case "agent.verified" if node.agent is not None:
                label = text_member(payload, "verdict") or "unknown"
                node.agent.evaluations.append((at, evaluation_attributes("openwop.verdict", label)))
            case "agent.invocation.completed" if node.agent is not None:
                outcome = text_member(payload, "outcome")
                if outcome in ("failed", "refused"):
                    node.agent.fail(outcome)
            case _ if event_type in _CUT_OFF and node.chat is not None:
                node.chat.attributes[FINISH_REASONS] = [_CUT_OFF[event_type]]
            case _:
                return

    def _add_chat(self, node: _Node, node_id: str, payload: JsonObject, at: int) -> None:
        requested = node.agent.attributes.get("gen_ai.request.model") if node.agent else None
        attributes = chat_attributes(payload, requested if isinstance(requested, str) else None)
        if node.finish:
            attributes[FINISH_REASONS] = [node.finish]
        if node.streamed and self._with_content:
            attributes[OUTPUT] = assistant_message(node.streamed)
        name = f"chat {attributes['gen_ai.response.model']}"
        node.chat = SpanDraft(name, node_id, node.request_start, at, attributes, calls_outside=True)
        node.request_start, node.finish, node.streamed = at, "", ""
        self._attach(node, node.chat)
        if node.agent is not None:
            for counted in (INPUT_TOKENS, OUTPUT_TOKENS):
                before, more = node.agent.attributes.get(counted, 0), attributes.get(counted, 0)
                if isinstance(before, int) and isinstance(more, int):
                    node.agent.attributes[counted] = before + more

    def _open_tool_call(self, node: _Node, node_id: str, payload: JsonObject, at: int) -> None:
        attributes = tool_attributes(payload)
        if self._with_content and "inputs" in payload:
            attributes[ARGUMENTS] = value_text(payload["inputs"])
        name = f"execute_tool {attributes['gen_ai.tool.name']}"
        draft = SpanDraft(name, node_id, at, at, attributes)
        node.calls[text_member(payload, "callId") or name] = draft
        self._attach(node, draft)
        if node.chat is not None:
            # The response before a tool call requested it.
            node.chat.attributes.setdefault(FINISH_REASONS, ["tool_calls"])

    def _close_tool_call(self, node: _Node, payload: JsonObject, at: int) -> None:
        name = f"execute_tool {text_member(payload, 'toolName') or 'unknown'}"
        draft = node.calls.pop(text_member(payload, "callId") or name, None)
        node.request_start = at
        if draft is None:
            return
        draft.end = at
        status = text_member(payload, "status")
        code = text_member(object_of(payload.get("error")), "code")
        if code is not None or status not in (None, "ok"):
            draft.fail(code or status or "error")
        if self._with_content and "outcome" in payload:
            draft.attributes[RESULT] = value_text(payload["outcome"])

    def _attach(self, node: _Node, draft: SpanDraft) -> None:
        (self.spans if node.agent is None else node.agent.children).append(draft)

    def _close(self, node_id: str, at: int, error: str | None = None) -> None:
        node = self._nodes.pop(node_id, None)
        if node is None:
            return
        for call in node.calls.values():
            call.end = at
            call.fail("no_return")
        for agent in node.agents.values():
            agent.end = at
            if error is not None:
                agent.fail(error)
