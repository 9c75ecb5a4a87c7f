"""GenAI spans of a trace as KAHN lines. The same set of spans gives the same bytes.

The order of the spans, their split into exports and repetitions do not matter. Spans that arrive
after a trace was projected become a separate run. Late actions of an agent that has ended become
audits of its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wopr.kahn.bridge.agent import (
    AgentState,
    EventLines,
    RunEnding,
    ToolCall,
    ToolReturn,
    end_agent,
)
from wopr.kahn.events import AuditResult
from wopr.kahn.otlp.spans import Evaluation, SpanFacts
from wopr.kahn.otlp.tree import SpanTree, TimeRange, time_ranges
from wopr.kahn.timestamps import from_millis
from wopr.protocol.documents import Json, JsonObject

NANOS_PER_MILLI: Final = 1_000_000
NANOS_PER_SECOND: Final = 1_000_000_000
# Finish reasons of a model that requests tool calls, and of a response that is not final.
_WANTS_TOOLS: Final = frozenset({"tool_calls", "tool_call", "tool_use", "function_call"})
_UNFINISHED: Final = frozenset(
    {"length", "max_tokens", "content_filter", "safety", "refusal", "error", *_WANTS_TOOLS}
)
_LABELS: Final[dict[str, AuditResult]] = {
    **dict.fromkeys(("pass", "passed", "true", "correct", "yes"), "pass"),
    **dict.fromkeys(("fail", "failed", "false", "incorrect", "no"), "fail"),
}


class SpanLines(EventLines):
    """The lines of one action. Only the end of an agent has `totals`."""

    def __init__(
        self,
        at: int,
        run_id: str,
        origin: JsonObject | None = None,
        totals: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(from_millis(at // NANOS_PER_MILLI), run_id)
        self._totals = dict(totals or {})
        self._origin = {name: value for name, value in (origin or {}).items() if value}

    def write(self, name: str, fields: JsonObject) -> None:
        """Add a line."""
        super().write(name, fields | self._totals if name == "agent_run_end" else fields)


@dataclass(slots=True)
class TraceAgent:
    """One agent of a trace: its invocations, and the model and tool calls of its runs."""

    agent_id: str
    # Spans of the agent itself; empty if only its calls were traced.
    invocations: list[SpanFacts] = field(default_factory=list[SpanFacts])
    call_spans: list[SpanFacts] = field(default_factory=list[SpanFacts])
    state: AgentState | None = None
    # Whether the last response of a model was final.
    has_final_response: bool = False

    def begin(self, output: SpanLines, facts: JsonObject) -> None:
        """Write the start of the agent."""
        self.state = AgentState(self.agent_id, output.ts)
        output.write("agent_run_start", {"agent_id": self.agent_id, **facts})

    @property
    def agent(self) -> AgentState:
        """Return the state of the agent from its lines."""
        if self.state is None:
            raise ValueError(f"{self.agent_id} has not started")
        return self.state

    def begin_chat(self, output: SpanLines, span: SpanFacts) -> None:
        """Write the start of a model call."""
        self.agent.move_to(output, "thinking", "chat")

    def end_chat(self, output: SpanLines, span: SpanFacts) -> None:
        """Write the end of a model call."""
        agent = self.agent
        self.has_final_response = not span.error and _UNFINISHED.isdisjoint(span.finish)
        if span.error:
            agent.audit(
                output, "otel:chat", "fail", _without_empty(error=span.error, model=span.model)
            )
        elif _WANTS_TOOLS.isdisjoint(span.finish):
            agent.last_act = "other"
            agent.move_to(output, "response", f"chat:{span.finish[0]}" if span.finish else "chat")

    def begin_tool_call(self, output: SpanLines, span: SpanFacts) -> None:
        """Write the start of a tool call."""
        tool = span.tool or "unknown"
        self.agent.last_act = "other"
        self.agent.move_to(output, "tool_call", f"tool_call:{tool}")
        self.agent.calls[span.span_id] = ToolCall(
            tool, output.ts, span.call_id or None, span.arguments or None
        )

    def end_tool_call(self, output: SpanLines, span: SpanFacts) -> None:
        """Write the end of a tool call."""
        agent = self.agent
        call = agent.calls.pop(span.span_id)
        lasted = round((span.end - span.start) / NANOS_PER_SECOND, 3)
        error = span.error or None
        agent.write_tool_return(
            output, ToolReturn(call, lasted, error, call.input_summary, span.result or None)
        )
        if agent.status == "tool_call" and not agent.calls:
            agent.transition(output, "tool_result", None)

    def hand_over(self, output: SpanLines, receiver: str) -> None:
        """Write the handoff to another agent."""
        self.agent.last_act = "handoff"
        self.agent.move_to(output, "response", f"handoff:{receiver}")

    def judge(self, output: SpanLines, evaluation: Evaluation) -> None:
        """Write an evaluation as an audit."""
        self.agent.audit(output, f"eval:{evaluation.name}", *audit_of(evaluation))

    def end(self, output: SpanLines) -> None:
        """Write the end of the agent; the invocation that ended last decides the outcome."""
        agent = self.agent
        last = max(self.invocations, key=_by_end, default=None)
        if last is not None and last.error:
            # A failed agent has not handed off.
            agent.last_act = "other"
            ending = RunEnding("run.failed", last.error, agent)
        else:
            agent.has_decided = self.has_final_response
            ending = RunEnding("run.completed")
        end_agent(output, agent, ending)

    def totals(self) -> Mapping[str, int]:
        """Return the number of model calls and tokens of the agent."""
        chats = [span for span in self.call_spans if span.kind == "chat"]
        # A framework that does not trace model calls may report their totals in the invocation.
        counted = chats or self.invocations
        return {
            "otel_model_calls": len(chats),
            "otel_input_tokens": sum(span.input_tokens for span in counted),
            "otel_output_tokens": sum(span.output_tokens for span in counted),
        }


def audit_of(evaluation: Evaluation) -> tuple[AuditResult, JsonObject]:
    """Return the audit result and the evidence of an evaluation, without its explanation."""
    result = _LABELS.get(evaluation.label.lower(), "warn")
    return result, _without_empty(label=evaluation.label, score=evaluation.score)


def _without_empty(**facts: Json) -> JsonObject:
    return {name: value for name, value in facts.items() if value not in ("", None)}


def _by_end(span: SpanFacts) -> tuple[int, str]:
    return span.end, span.span_id


LATE: Final = "otel:late"
# The order of actions at the same time: agents start, spans with a duration end, spans start, spans
# without a duration end, agents end.
_AGENT_STARTS, _SPAN_ENDS, _SPAN_STARTS, _INSTANT_SPAN_ENDS, _AGENT_ENDS = range(5)


class TimedAction(NamedTuple):
    """An action at a time of a trace. Actions are ordered by all fields except `act`."""

    at: int
    phase: int
    depth: int
    span_id: str
    act: Callable[[], list[bytes]]


def run_id_of(trace_id: str, episode: int = 1) -> str:
    """Return the run id of an episode of a trace. Later episodes have a number."""
    return f"otel-{trace_id}" if episode == 1 else f"otel-{trace_id}-{episode}"


def project_trace(trace_id: str, episodes: Sequence[Mapping[str, SpanFacts]]) -> list[bytes]:
    """Return the lines of the last episode of a trace, given the earlier episodes."""
    projected: dict[str, SpanFacts] = {}
    episode_of_agent: dict[str, int] = {}
    for number, spans in enumerate(episodes[:-1], 1):
        projected |= {span_id: span for span_id, span in spans.items() if span_id not in projected}
        tree = SpanTree(projected)
        episode_of_agent |= {tree.agent_id(span): number for span in _action_spans(spans.values())}
    new = {span_id: span for span_id, span in episodes[-1].items() if span_id not in projected}
    tree = SpanTree(projected | new)
    late, current = _split_late(tree, new, episode_of_agent)
    run = _RunBuilder(trace_id, len(episodes), tree, current)
    return [*_late_lines(trace_id, tree, late, episode_of_agent), *run.lines()]


def _action_spans(spans: Iterable[SpanFacts]) -> list[SpanFacts]:
    return [span for span in spans if span.kind in ("agent", "chat", "tool")]


def _split_late(
    tree: SpanTree, new: Mapping[str, SpanFacts], episode_of_agent: Mapping[str, int]
) -> tuple[list[SpanFacts], list[SpanFacts]]:
    """Separate late spans, which belong to the run of an earlier episode, from current spans."""
    late: list[SpanFacts] = []
    current: list[SpanFacts] = []
    for span in new.values():
        if span.kind == "other":
            continue
        owner = tree.owner(span)
        is_of_current = owner is not None and owner.span_id in new
        is_act = span.kind in ("chat", "tool")
        is_late = is_act and not is_of_current and tree.agent_id(span) in episode_of_agent
        (late if is_late else current).append(span)
    return late, current


def _late_lines(
    trace_id: str, tree: SpanTree, late: Iterable[SpanFacts], episode_of_agent: Mapping[str, int]
) -> list[bytes]:
    lines: list[bytes] = []
    for span in sorted(late, key=lambda each: (each.end, each.span_id)):
        agent_id = tree.agent_id(span)
        output = SpanLines(span.end, run_id_of(trace_id, episode_of_agent[agent_id]), _origin(span))
        evidence: JsonObject = {"operation": span.kind}
        facts = {"tool": span.tool, "model": span.model, "error": span.error}
        output.audit(agent_id, LATE, "warn", evidence | {n: v for n, v in facts.items() if v})
        lines += output.lines
    return lines


class _RunBuilder:
    """Builds the lines of the run of one episode."""

    def __init__(
        self, trace_id: str, episode: int, tree: SpanTree, spans: Sequence[SpanFacts]
    ) -> None:
        self._trace_id = trace_id
        self._run_id = run_id_of(trace_id, episode)
        self._tree = tree
        self._times = time_ranges(tree)
        self._agents: dict[str, TraceAgent] = {}
        self._own = {span.span_id for span in spans}
        self._workflows = [span for span in spans if span.kind == "workflow"]
        for span in sorted(_action_spans(spans), key=lambda each: each.span_id):
            agent_id = tree.agent_id(span)
            agent = self._agents.setdefault(agent_id, TraceAgent(agent_id))
            (agent.invocations if span.kind == "agent" else agent.call_spans).append(span)

    def lines(self) -> list[bytes]:
        """Return all lines, ordered by time."""
        if not self._agents:
            return []
        actions: list[TimedAction] = []
        for agent in self._agents.values():
            actions += self._actions_of(agent)
        for span in self._workflows:
            actions += self._evaluations(None, span)
        actions.sort(key=lambda action: action[:-1])
        return [line for action in actions for line in action.act()]

    # Actions of one agent

    def _actions_of(self, agent: TraceAgent) -> list[TimedAction]:
        spans = [*agent.invocations, *agent.call_spans]
        whole = TimeRange(
            min(self._times[span.span_id].start for span in spans),
            max(self._times[span.span_id].end for span in spans),
        )
        depth = min(self._times[span.span_id].depth for span in spans)
        actions = [
            TimedAction(whole.start, _AGENT_STARTS, depth, "", lambda: self._begin(agent, whole))
        ]
        for span in agent.invocations:
            actions += self._handoff(agent, span)
        for span in agent.call_spans:
            actions += self._span_actions(agent, span)
        for span in spans:
            actions += self._evaluations(agent, span)
        # Without an own span of the agent and without the root, the agent may still be active.
        if agent.invocations or self._tree.is_whole:
            actions.append(
                TimedAction(whole.end, _AGENT_ENDS, -depth, "", lambda: self._end(agent, whole))
            )
        return actions

    def _begin(self, agent: TraceAgent, whole: TimeRange) -> list[bytes]:
        output = SpanLines(whole.start, self._run_id)
        agent.begin(output, self._facts(agent))
        return output.lines

    def _facts(self, agent: TraceAgent) -> JsonObject:
        """Return the facts of an agent's start line."""
        spans = sorted([*agent.invocations, *agent.call_spans], key=_by_start)
        first = min(agent.invocations, key=_by_start, default=spans[0])
        workflows = sorted(self._workflows, key=_by_start)
        workflow = next((span.workflow for span in workflows if span.workflow), "")
        run_id = next((span.run_id for span in spans if span.run_id), "")
        facts = {
            "model": next((span.model for span in spans if span.model), ""),
            "otel_trace_id": self._trace_id,
            "otel_service": first.service,
            "otel_agent_name": first.name,
            "otel_provider": next((span.provider for span in spans if span.provider), ""),
            "otel_conversation_id": next((s.conversation for s in spans if s.conversation), ""),
            "otel_parent_agent_id": self._sender(first) or "",
            # Spans that an OpenWOP host exported keep its names.
            "openwop_agent_id": first.agent if run_id else "",
            "openwop_run_id": run_id,
        }
        task = workflow or f"invoke_agent {first.name or first.agent}"
        return {"task": task} | {name: value for name, value in facts.items() if value}

    def _handoff(self, agent: TraceAgent, span: SpanFacts) -> list[TimedAction]:
        owner = self._tree.owner(span)
        # The handoff of an invocation of an earlier episode is in the run of that episode.
        if owner is None or owner.span_id not in self._own:
            return []
        sender = self._agents[self._tree.agent_id(owner)]
        if sender is agent:
            return []
        at = self._times[span.span_id].start

        def hand_over() -> list[bytes]:
            output = SpanLines(at, self._run_id, _origin(span))
            # In a cycle of parents the sender may not have started yet.
            if sender.state is not None:
                sender.hand_over(output, agent.agent_id)
            return output.lines

        return [TimedAction(at, _SPAN_STARTS, 0, span.span_id, hand_over)]

    def _sender(self, span: SpanFacts) -> str | None:
        owner = self._tree.owner(span)
        return None if owner is None else self._tree.agent_id(owner)

    def _span_actions(self, agent: TraceAgent, span: SpanFacts) -> list[TimedAction]:
        start, end, _ = self._times[span.span_id]
        opens, closes = (
            (agent.begin_chat, agent.end_chat)
            if span.kind == "chat"
            else (agent.begin_tool_call, agent.end_tool_call)
        )

        def act(
            do: Callable[[SpanLines, SpanFacts], None], at: int, origin: JsonObject
        ) -> list[bytes]:
            output = SpanLines(at, self._run_id, origin)
            do(output, span)
            return output.lines

        used: JsonObject = {
            "otel_model": span.model if span.kind == "chat" else "",
            "otel_input_tokens": span.input_tokens,
            "otel_output_tokens": span.output_tokens,
        }
        return [
            TimedAction(
                start, _SPAN_STARTS, 0, span.span_id, lambda: act(opens, start, _origin(span))
            ),
            TimedAction(
                end,
                _SPAN_ENDS if end > start else _INSTANT_SPAN_ENDS,
                0,
                span.span_id,
                lambda: act(closes, end, _origin(span) | used),
            ),
        ]

    def _evaluations(self, agent: TraceAgent | None, span: SpanFacts) -> list[TimedAction]:
        """Return the evaluations of a span at its end; those of a workflow are about the run."""
        at = self._times[span.span_id].end

        def judge() -> list[bytes]:
            output = SpanLines(at, self._run_id, _origin(span))
            for evaluation in span.evaluations:
                if agent is None:
                    output.audit(None, f"eval:{evaluation.name}", *audit_of(evaluation))
                else:
                    agent.judge(output, evaluation)
            return output.lines

        return (
            [TimedAction(at, _INSTANT_SPAN_ENDS, 1, span.span_id, judge)]
            if span.evaluations
            else []
        )

    def _end(self, agent: TraceAgent, whole: TimeRange) -> list[bytes]:
        output = SpanLines(whole.end, self._run_id, totals=agent.totals())
        agent.end(output)
        return output.lines


def _by_start(span: SpanFacts) -> tuple[int, str]:
    return span.start, span.span_id


def _origin(span: SpanFacts) -> JsonObject:
    return {"otel_span_id": span.span_id}
