"""What the spans of one agent become: its start, its moves, its tools and its end as KAHN lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wopr.fleet.bridge_agent import Agent, Call, Page, Return
from wopr.fleet.bridge_ends import Ending, end
from wopr.fleet.events import AuditResult
from wopr.fleet.instants import from_millis
from wopr.fleet.otlp_facts import Evaluation, SpanFacts
from wopr.protocol.documents import Json, JsonObject

NANOS_PER_MILLI: Final = 1_000_000
NANOS_PER_SECOND: Final = 1_000_000_000
# How a model's answer ends when it wants tools called, and when it is not its last word.
_WANTS_TOOLS: Final = frozenset({"tool_calls", "tool_call", "tool_use", "function_call"})
_UNFINISHED: Final = frozenset(
    {"length", "max_tokens", "content_filter", "safety", "refusal", "error", *_WANTS_TOOLS}
)
_LABELS: Final[dict[str, AuditResult]] = {
    **dict.fromkeys(("pass", "passed", "true", "correct", "yes"), "pass"),
    **dict.fromkeys(("fail", "failed", "false", "incorrect", "no"), "fail"),
}


class SpanPage(Page):
    """The lines that one moment of a span causes; `totals` are told with an agent's end only."""

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
class Actor:
    """One agent of a trace: its invocations, and what was done on its behalf."""

    agent_id: str
    # Its own spans; none for an agent that is known only by what was done.
    invocations: list[SpanFacts] = field(default_factory=list[SpanFacts])
    members: list[SpanFacts] = field(default_factory=list[SpanFacts])
    state: Agent | None = None
    # The last answer of a model, and whether it was its last word.
    has_answered: bool = False

    def begin(self, page: SpanPage, facts: JsonObject) -> None:
        """Write the agent's start."""
        self.state = Agent(self.agent_id, page.ts)
        page.write("agent_run_start", {"agent_id": self.agent_id, **facts})

    @property
    def agent(self) -> Agent:
        """The agent as its lines have told so far."""
        if self.state is None:
            raise ValueError(f"{self.agent_id} has not begun")
        return self.state

    def ask(self, page: SpanPage, span: SpanFacts) -> None:
        """A model is asked."""
        self.agent.go(page, "thinking", "chat")

    def answer(self, page: SpanPage, span: SpanFacts) -> None:
        """A model answered, or failed to."""
        agent = self.agent
        self.has_answered = not span.error and _UNFINISHED.isdisjoint(span.finish)
        if span.error:
            agent.audit(page, "otel:chat", "fail", _some(error=span.error, model=span.model))
        elif _WANTS_TOOLS.isdisjoint(span.finish):
            agent.last_act = "other"
            agent.go(page, "response", f"chat:{span.finish[0]}" if span.finish else "chat")

    def call(self, page: SpanPage, span: SpanFacts) -> None:
        """A tool is called."""
        tool = span.tool or "unknown"
        self.agent.last_act = "other"
        self.agent.go(page, "tool_call", f"tool_call:{tool}")
        self.agent.calls[span.span_id] = Call(
            tool, page.ts, span.call_id or None, span.arguments or None
        )

    def take_return(self, page: SpanPage, span: SpanFacts) -> None:
        """A tool is done."""
        agent = self.agent
        call = agent.calls.pop(span.span_id)
        lasted = round((span.end - span.start) / NANOS_PER_SECOND, 3)
        error = span.error or None
        agent.tool_returned(
            page, Return(call, lasted, error, call.input_summary, span.result or None)
        )
        if agent.status == "tool_call" and not agent.calls:
            agent.hop(page, "tool_result", None)

    def hand_over(self, page: SpanPage, receiver: str) -> None:
        """Another agent is invoked."""
        self.agent.last_act = "handoff"
        self.agent.go(page, "response", f"handoff:{receiver}")

    def judge(self, page: SpanPage, evaluation: Evaluation) -> None:
        """Somebody judged what was done."""
        self.agent.audit(page, f"eval:{evaluation.name}", *judged(evaluation))

    def end(self, page: SpanPage) -> None:
        """Write the agent's end; the invocation that ended last says how it went."""
        agent = self.agent
        last = max(self.invocations, key=_by_end, default=None)
        if last is not None and last.error:
            # Whoever fails has handed over to nobody.
            agent.last_act = "other"
            ending = Ending("run.failed", last.error, agent)
        else:
            agent.has_decided = self.has_answered
            ending = Ending("run.completed")
        end(page, agent, ending)

    def totals(self) -> Mapping[str, int]:
        """What models were asked on the agent's behalf."""
        chats = [span for span in self.members if span.kind == "chat"]
        # A framework that traces no requests may still sum them up.
        counted = chats or self.invocations
        return {
            "otel_model_calls": len(chats),
            "otel_input_tokens": sum(span.input_tokens for span in counted),
            "otel_output_tokens": sum(span.output_tokens for span in counted),
        }


def judged(evaluation: Evaluation) -> tuple[AuditResult, JsonObject]:
    """The result of an evaluation and what speaks for it; its explanation stays outside."""
    result = _LABELS.get(evaluation.label.lower(), "warn")
    return result, _some(label=evaluation.label, score=evaluation.score)


def _some(**facts: Json) -> JsonObject:
    return {name: value for name, value in facts.items() if value not in ("", None)}


def _by_end(span: SpanFacts) -> tuple[int, str]:
    return span.end, span.span_id
