"""From the GenAI spans of a trace to KAHN lines: the same set of spans gives the same bytes.

Nothing depends on the order in which spans came, on how they were cut into exports, or on how often
each came. What comes after a trace was told is told in a run of its own; only what an agent did whose
end has been written follows that run as a check, which may come after an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from wopr.fleet.otlp_acts import Actor, SpanPage, judged
from wopr.fleet.otlp_facts import SpanFacts
from wopr.fleet.otlp_times import Stretch, stretches
from wopr.fleet.otlp_tree import Tree
from wopr.protocol.documents import JsonObject

LATE: Final = "otel:late"
# At one instant: agents begin, what lasted ends, what begins begins, what took no time ends.
_BEGINS, _ENDED, _STARTS, _OVER, _ENDS = range(5)


class Moment(NamedTuple):
    """Something that happens in a trace; moments are ordered by all but what happens."""

    at: int
    phase: int
    depth: int
    span_id: str
    act: Callable[[], list[bytes]]


def run_id_of(trace_id: str, episode: int = 1) -> str:
    """What the run of a trace is called; whatever is told later has a number."""
    return f"otel-{trace_id}" if episode == 1 else f"otel-{trace_id}-{episode}"


def translate(trace_id: str, episodes: Sequence[Mapping[str, SpanFacts]]) -> list[bytes]:
    """Write the lines of the last episode of a trace, given all that was told before."""
    told: dict[str, SpanFacts] = {}
    homes: dict[str, int] = {}
    for number, spans in enumerate(episodes[:-1], 1):
        told |= {span_id: span for span_id, span in spans.items() if span_id not in told}
        tree = Tree(told)
        homes |= {tree.agent_id(span): number for span in _acting(spans.values())}
    news = {span_id: span for span_id, span in episodes[-1].items() if span_id not in told}
    tree = Tree(told | news)
    late, fresh = _sorted_out(tree, news, homes)
    story = _Story(trace_id, len(episodes), tree, fresh)
    return [*_late_lines(trace_id, tree, late, homes), *story.lines()]


def _acting(spans: Iterable[SpanFacts]) -> list[SpanFacts]:
    return [span for span in spans if span.kind in ("agent", "chat", "tool")]


def _sorted_out(
    tree: Tree, news: Mapping[str, SpanFacts], homes: Mapping[str, int]
) -> tuple[list[SpanFacts], list[SpanFacts]]:
    """Tell what comes too late for an agent's run from what is a run of its own."""
    late: list[SpanFacts] = []
    fresh: list[SpanFacts] = []
    for span in news.values():
        if span.kind == "other":
            continue
        owner = tree.owner(span)
        is_of_fresh = owner is not None and owner.span_id in news
        is_act = span.kind in ("chat", "tool")
        is_late = is_act and not is_of_fresh and tree.agent_id(span) in homes
        (late if is_late else fresh).append(span)
    return late, fresh


def _late_lines(
    trace_id: str, tree: Tree, late: Iterable[SpanFacts], homes: Mapping[str, int]
) -> list[bytes]:
    lines: list[bytes] = []
    for span in sorted(late, key=lambda each: (each.end, each.span_id)):
        agent_id = tree.agent_id(span)
        page = SpanPage(span.end, run_id_of(trace_id, homes[agent_id]), _origin(span))
        evidence: JsonObject = {"operation": span.kind}
        facts = {"tool": span.tool, "model": span.model, "error": span.error}
        page.audit(agent_id, LATE, "warn", evidence | {n: v for n, v in facts.items() if v})
        lines += page.lines
    return lines


class _Story:
    """One run in the making."""

    def __init__(self, trace_id: str, episode: int, tree: Tree, spans: Sequence[SpanFacts]) -> None:
        self._trace_id = trace_id
        self._run_id = run_id_of(trace_id, episode)
        self._tree = tree
        self._times = stretches(tree)
        self._actors: dict[str, Actor] = {}
        self._own = {span.span_id for span in spans}
        self._workflows = [span for span in spans if span.kind == "workflow"]
        for span in sorted(_acting(spans), key=lambda each: each.span_id):
            agent_id = tree.agent_id(span)
            actor = self._actors.setdefault(agent_id, Actor(agent_id))
            (actor.invocations if span.kind == "agent" else actor.members).append(span)

    def lines(self) -> list[bytes]:
        """All lines, in the order of time."""
        if not self._actors:
            return []
        moments: list[Moment] = []
        for actor in self._actors.values():
            moments += self._life(actor)
        for span in self._workflows:
            moments += self._verdicts(None, span)
        moments.sort(key=lambda moment: moment[:-1])
        return [line for moment in moments for line in moment.act()]

    # An agent's moments

    def _life(self, actor: Actor) -> list[Moment]:
        spans = [*actor.invocations, *actor.members]
        whole = Stretch(
            min(self._times[span.span_id].start for span in spans),
            max(self._times[span.span_id].end for span in spans),
        )
        depth = min(self._times[span.span_id].depth for span in spans)
        moments = [Moment(whole.start, _BEGINS, depth, "", lambda: self._begin(actor, whole))]
        for span in actor.invocations:
            moments += self._invoked(actor, span)
        for span in actor.members:
            moments += self._done(actor, span)
        for span in spans:
            moments += self._verdicts(actor, span)
        # An agent that never came itself, in a trace whose root never came, may still be at work.
        if actor.invocations or self._tree.is_whole:
            moments.append(Moment(whole.end, _ENDS, -depth, "", lambda: self._end(actor, whole)))
        return moments

    def _begin(self, actor: Actor, whole: Stretch) -> list[bytes]:
        page = SpanPage(whole.start, self._run_id)
        actor.begin(page, self._facts(actor))
        return page.lines

    def _facts(self, actor: Actor) -> JsonObject:
        """What an agent's start says of it."""
        spans = sorted([*actor.invocations, *actor.members], key=_by_start)
        first = min(actor.invocations, key=_by_start, default=spans[0])
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
            "otel_parent_agent_id": self._giver(first) or "",
            # What comes from a host like this one keeps its names.
            "openwop_agent_id": first.agent if run_id else "",
            "openwop_run_id": run_id,
        }
        task = workflow or f"invoke_agent {first.name or first.agent}"
        return {"task": task} | {name: value for name, value in facts.items() if value}

    def _invoked(self, actor: Actor, span: SpanFacts) -> list[Moment]:
        owner = self._tree.owner(span)
        # An invocation that was told before has handed over in its own run.
        if owner is None or owner.span_id not in self._own:
            return []
        giver = self._actors[self._tree.agent_id(owner)]
        if giver is actor:
            return []
        at = self._times[span.span_id].start

        def hand_over() -> list[bytes]:
            page = SpanPage(at, self._run_id, _origin(span))
            # Two that claim to be each other's parents have not begun one after the other.
            if giver.state is not None:
                giver.hand_over(page, actor.agent_id)
            return page.lines

        return [Moment(at, _STARTS, 0, span.span_id, hand_over)]

    def _giver(self, span: SpanFacts) -> str | None:
        owner = self._tree.owner(span)
        return None if owner is None else self._tree.agent_id(owner)

    def _done(self, actor: Actor, span: SpanFacts) -> list[Moment]:
        start, end, _ = self._times[span.span_id]
        opens, closes = (
            (actor.ask, actor.answer) if span.kind == "chat" else (actor.call, actor.take_return)
        )

        def act(
            do: Callable[[SpanPage, SpanFacts], None], at: int, origin: JsonObject
        ) -> list[bytes]:
            page = SpanPage(at, self._run_id, origin)
            do(page, span)
            return page.lines

        used: JsonObject = {
            "otel_model": span.model if span.kind == "chat" else "",
            "otel_input_tokens": span.input_tokens,
            "otel_output_tokens": span.output_tokens,
        }
        return [
            Moment(start, _STARTS, 0, span.span_id, lambda: act(opens, start, _origin(span))),
            Moment(
                end,
                _ENDED if end > start else _OVER,
                0,
                span.span_id,
                lambda: act(closes, end, _origin(span) | used),
            ),
        ]

    def _verdicts(self, actor: Actor | None, span: SpanFacts) -> list[Moment]:
        """What was judged of a span, at its end; of a workflow it is about the run."""
        at = self._times[span.span_id].end

        def judge() -> list[bytes]:
            page = SpanPage(at, self._run_id, _origin(span))
            for evaluation in span.evaluations:
                if actor is None:
                    page.audit(None, f"eval:{evaluation.name}", *judged(evaluation))
                else:
                    actor.judge(page, evaluation)
            return page.lines

        return [Moment(at, _OVER, 1, span.span_id, judge)] if span.evaluations else []

    def _end(self, actor: Actor, whole: Stretch) -> list[bytes]:
        page = SpanPage(whole.end, self._run_id, totals=actor.totals())
        actor.end(page)
        return page.lines


def _by_start(span: SpanFacts) -> tuple[int, str]:
    return span.start, span.span_id


def _origin(span: SpanFacts) -> JsonObject:
    return {"otel_span_id": span.span_id}
