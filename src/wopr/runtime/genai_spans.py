"""The GenAI spans of a run, read from its log: agents, requests to models, and tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wopr.fleet.bridge_facts import (
    SYSTEM,
    agent_named,
    giver,
    node_of,
    number,
    object_of,
    text,
)
from wopr.protocol.documents import JsonObject
from wopr.protocol.events import RunEvent
from wopr.protocol.times import to_millis
from wopr.runtime.genai_attributes import (
    ARGUMENTS,
    ERROR_TYPE,
    FINISH_REASONS,
    INPUT_TOKENS,
    OUTPUT,
    OUTPUT_TOKENS,
    RESULT,
    Attributes,
    agent_attributes,
    chat_attributes,
    said_by_assistant,
    shown,
    tool_attributes,
    verdict_attributes,
)

_NODE_ENDS: Final = frozenset({"node.completed", "node.failed", "node.skipped", "node.cancelled"})
# After these a node does something else than before.
_STEPS: Final = frozenset({"node.started", "node.resumed", "agent.invocation.started"})
_CUT_OFF: Final = {"envelope.truncated": "length", "envelope.refusal": "content_filter"}
TOLD_TYPES: Final = frozenset(
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
    """A span in the making, in milliseconds; `verdicts` are the attributes of its evaluations."""

    name: str
    node_id: str
    start: int
    end: int
    attributes: Attributes
    calls_outside: bool = False
    children: list[SpanDraft] = field(default_factory=list["SpanDraft"])
    verdicts: list[tuple[int, Attributes]] = field(default_factory=list[tuple[int, Attributes]])

    def fail(self, code: str) -> None:
        """Say what went wrong, by a code; the first one counts."""
        self.attributes.setdefault(ERROR_TYPE, code)


@dataclass(slots=True)
class _Node:
    """What is known of a node while its log is read."""

    step: int
    agents: dict[str, SpanDraft] = field(default_factory=dict[str, SpanDraft])
    # Who acted last.
    agent: SpanDraft | None = None
    calls: dict[str, SpanDraft] = field(default_factory=dict[str, SpanDraft])
    chat: SpanDraft | None = None
    # What was streamed of an answer whose end is still to come.
    finish: str = ""
    said: str = ""


class SpanLog:
    """Reads the log of one run. `spans` hang on nodes, and others on them."""

    def __init__(self, *, with_content: bool = False) -> None:
        self.spans: list[SpanDraft] = []
        self.verdicts: list[tuple[int, Attributes]] = []
        self._with_content = with_content
        self._nodes: dict[str, _Node] = {}

    def feed(self, event: RunEvent) -> None:
        """Take the next event of the log."""
        at, payload = to_millis(event.timestamp), object_of(event.payload)
        if event.type == "eval.scored":
            label = "pass" if payload.get("passed") is True else "fail"
            name = text(payload, "taskId") or "unknown"
            self.verdicts.append((at, verdict_attributes(name, label, number(payload, "score"))))
            return
        node_id = node_of(event)
        if node_id is None:
            return
        if event.type == "node.started":
            self._close(node_id, at)
        node = self._nodes.setdefault(node_id, _Node(at))
        if event.type in _STEPS:
            node.step = at
        self._find_agent(node, node_id, event.type, payload, at)
        self._take(node, node_id, event.type, payload, at)
        if event.type in _NODE_ENDS:
            code = text(object_of(payload.get("error")), "code")
            self._close(node_id, at, code or ("error" if event.type == "node.failed" else None))

    def finish(self, at: int, error: str | None = None) -> None:
        """End whatever is still open: the run is over."""
        for node_id in list(self._nodes):
            self._close(node_id, at, error)

    def _find_agent(
        self, node: _Node, node_id: str, event_type: str, payload: JsonObject, at: int
    ) -> None:
        """Note who acts; an agent that shows itself for the first time is invoked."""
        is_act = event_type.startswith(("agent.", "runOrchestrator.")) or event_type in _STEPS
        name = giver(payload) if event_type == "agent.handoff" else agent_named(payload)
        if not is_act or name is None or name == SYSTEM:
            return
        told = agent_attributes(name, payload)
        draft = node.agents.get(name)
        if draft is None:
            draft = SpanDraft(f"invoke_agent {name}", node_id, at, at, told)
            node.agents[name] = draft
            self.spans.append(draft)
        elif event_type == "agent.invocation.started":
            draft.attributes |= told
        node.agent = draft

    def _take(
        self, node: _Node, node_id: str, event_type: str, payload: JsonObject, at: int
    ) -> None:
        match event_type:
            case "output.chunk":
                node.said += text(payload, "chunk") or ""
                node.finish = text(object_of(payload.get("meta")), "finishReason") or node.finish
            case "provider.usage":
                self._asked(node, node_id, payload, at)
            case "agent.toolCalled":
                self._called(node, node_id, payload, at)
            case "agent.toolReturned":
                self._returned(node, payload, at)
            case "agent.decided" if node.agent is not None and self._with_content:
                decision = payload.get("decision")
                node.agent.attributes[OUTPUT] = said_by_assistant(shown(decision))
            case "agent.verified" if node.agent is not None:
                label = text(payload, "verdict") or "unknown"
                node.agent.verdicts.append((at, verdict_attributes("openwop.verdict", label)))
            case "agent.invocation.completed" if node.agent is not None:
                outcome = text(payload, "outcome")
                if outcome in ("failed", "refused"):
                    node.agent.fail(outcome)
            case _ if event_type in _CUT_OFF and node.chat is not None:
                node.chat.attributes[FINISH_REASONS] = [_CUT_OFF[event_type]]
            case _:
                return

    def _asked(self, node: _Node, node_id: str, payload: JsonObject, at: int) -> None:
        requested = node.agent.attributes.get("gen_ai.request.model") if node.agent else None
        told = chat_attributes(payload, requested if isinstance(requested, str) else None)
        if node.finish:
            told[FINISH_REASONS] = [node.finish]
        if node.said and self._with_content:
            told[OUTPUT] = said_by_assistant(node.said)
        name = f"chat {told['gen_ai.response.model']}"
        node.chat = SpanDraft(name, node_id, node.step, at, told, calls_outside=True)
        node.step, node.finish, node.said = at, "", ""
        self._hang(node, node.chat)
        if node.agent is not None:
            for counted in (INPUT_TOKENS, OUTPUT_TOKENS):
                before, more = node.agent.attributes.get(counted, 0), told.get(counted, 0)
                if isinstance(before, int) and isinstance(more, int):
                    node.agent.attributes[counted] = before + more

    def _called(self, node: _Node, node_id: str, payload: JsonObject, at: int) -> None:
        told = tool_attributes(payload)
        if self._with_content and "inputs" in payload:
            told[ARGUMENTS] = shown(payload["inputs"])
        name = f"execute_tool {told['gen_ai.tool.name']}"
        draft = SpanDraft(name, node_id, at, at, told)
        node.calls[text(payload, "callId") or name] = draft
        self._hang(node, draft)
        if node.chat is not None:
            # The answer before a call asked for it.
            node.chat.attributes.setdefault(FINISH_REASONS, ["tool_calls"])

    def _returned(self, node: _Node, payload: JsonObject, at: int) -> None:
        name = f"execute_tool {text(payload, 'toolName') or 'unknown'}"
        draft = node.calls.pop(text(payload, "callId") or name, None)
        node.step = at
        if draft is None:
            return
        draft.end = at
        status = text(payload, "status")
        code = text(object_of(payload.get("error")), "code")
        if code is not None or status not in (None, "ok"):
            draft.fail(code or status or "error")
        if self._with_content and "outcome" in payload:
            draft.attributes[RESULT] = shown(payload["outcome"])

    def _hang(self, node: _Node, draft: SpanDraft) -> None:
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
