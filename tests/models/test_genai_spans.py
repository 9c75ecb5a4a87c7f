"""The GenAI spans of a log, event by event."""

from __future__ import annotations

from itertools import count

from wopr.protocol.documents import Json, JsonObject, to_iso
from wopr.protocol.events import RunEvent
from wopr.services.telemetry.genai_spans import RunSpans, SpanDraft

NOON = 1_800_000_000_000
USAGE: JsonObject = {"provider": "google", "model": "m-1", "inputTokens": 3, "outputTokens": 4}
CALL: JsonObject = {"agentId": "lead", "toolName": "search", "callId": "c-1"}


class Log:
    """A log of one node; each event is a second after the previous one."""

    def __init__(self) -> None:
        self.read = RunSpans()
        self._places = count()

    def add(self, event_type: str, node_id: str = "a", **payload: Json) -> Log:
        place = next(self._places)
        self.read.add(
            RunEvent(
                event_id=f"e-{place}",
                run_id="run-1",
                type=event_type,
                payload={"nodeId": node_id, **payload},
                timestamp=to_iso(NOON + 1000 * place),
                sequence=place,
            )
        )
        return self

    def begin(self, agent_id: str = "lead") -> Log:
        return self.add("node.started", agent={"agentId": agent_id})

    def end(self, error: str | None = None) -> list[SpanDraft]:
        self.read.finish(NOON + 1000 * next(self._places), error)
        return self.read.spans


def seconds(span: SpanDraft) -> tuple[int, int]:
    return (span.start - NOON) // 1000, (span.end - NOON) // 1000


def test_a_request_span_starts_at_the_previous_step() -> None:
    log = Log().begin().add("output.chunk", chunk="x").add("provider.usage", **USAGE)
    log.add("agent.toolCalled", **CALL).add("agent.toolReturned", **CALL)

    [agent] = log.add("provider.usage", **USAGE).add("node.completed").end()

    first, tool, second = agent.children
    assert [seconds(each) for each in (agent, first, tool, second)] == [
        (0, 6),
        (0, 2),
        (3, 4),
        (4, 5),
    ]
    assert first.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert "gen_ai.response.finish_reasons" not in second.attributes
    assert first.attributes["gen_ai.provider.name"] == "gcp.gen_ai"
    assert first.attributes["openwop.cost.provider"] == "google"
    assert agent.attributes["gen_ai.usage.output_tokens"] == 8


def test_a_request_without_an_agent_is_a_child_of_its_node() -> None:
    [chat] = Log().add("node.started").add("provider.usage", **USAGE).end()

    assert (chat.name, chat.node_id) == ("chat m-1", "a")


def test_an_unreturned_tool_is_marked_and_the_agent_has_the_error_that_stopped_it() -> None:
    [agent] = Log().begin().add("agent.toolCalled", **CALL).end("cancelled")

    [tool] = agent.children
    assert tool.attributes["error.type"] == "no_return"
    assert agent.attributes["error.type"] == "cancelled"


def test_an_agent_s_error_is_its_node_s_code() -> None:
    error = {"code": "model_timeout", "message": "hidden"}
    [agent] = Log().begin().add("node.failed", error=error).end()

    assert agent.attributes["error.type"] == "model_timeout"
    assert "hidden" not in str(agent)


def test_every_attempt_is_a_separate_invocation() -> None:
    log = Log().begin().add("node.failed", error={"code": "x"}).begin().add("node.completed")

    first, second = log.end()

    assert (first.attributes.get("error.type"), second.attributes.get("error.type")) == ("x", None)


def test_a_hand_off_target_is_invoked_when_it_acts() -> None:
    log = Log().begin().add("agent.handoff", fromAgentId="lead", toAgentId="helper")

    lead, helper = log.add("agent.reasoned", agentId="helper").end()

    assert (lead.name, helper.name) == ("invoke_agent lead", "invoke_agent helper")
    assert seconds(helper)[0] == 2


def test_an_invocation_names_its_resolved_agent_and_outcome() -> None:
    log = Log().begin()
    resolved = {"resolvedModel": "m-1", "resolvedProvider": "openai", "resolvedAgentVersion": "2"}
    log.add("agent.invocation.started", agentId="lead", invocationId="i", **resolved)

    [agent] = log.add("agent.invocation.completed", agentId="lead", outcome="refused").end()

    assert agent.attributes["gen_ai.request.model"] == "m-1"
    assert agent.attributes["gen_ai.agent.version"] == "2"
    assert agent.attributes["error.type"] == "refused"


def test_a_truncated_or_refused_answer_is_marked() -> None:
    log = Log().begin().add("provider.usage", **USAGE).add("envelope.truncated")

    [agent] = log.add("provider.usage", **USAGE).add("envelope.refusal").end()

    reasons = [chat.attributes["gen_ai.response.finish_reasons"] for chat in agent.children]
    assert reasons == [["length"], ["content_filter"]]


def test_annotations_and_scores_are_evaluations_without_text() -> None:
    log = Log().begin().add("agent.verified", agentId="lead", target="e-0", verdict="pass")

    [agent] = log.add("eval.scored", taskId="t", passed=False, score=0.5, note="hidden").end()

    [(_, verdict)] = agent.evaluations
    [(_, score)] = log.read.evaluations
    assert verdict["gen_ai.evaluation.score.label"] == "pass"
    assert score == {
        "gen_ai.evaluation.name": "t",
        "gen_ai.evaluation.score.label": "fail",
        "gen_ai.evaluation.score.value": 0.5,
    }


def test_the_host_itself_is_not_an_agent() -> None:
    assert Log().begin("core.system").end() == []
