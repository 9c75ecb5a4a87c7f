"""The bridge from run logs to KAHN lines (section 14).

The projection is pure and prefix-stable: the same log gives the same bytes, and the lines of the
first events of a log are the first lines of the whole log. So a live tail and an export agree, and
a push of either can be aligned with the other. `wopr.kahn.observed.events` is the reverse
direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from wopr.kahn.bridge.agent import TERMINAL_TYPES, AgentState, EventLines, RunEnding, end_agent
from wopr.kahn.bridge.facts import answer_of, pause_kind, threshold_of, to_agent_id, to_run_id
from wopr.kahn.bridge.handlers import HANDLERS, ConfidenceThresholds, ProjectionContext
from wopr.kahn.events import AuditResult
from wopr.kahn.lifecycle import BLOCKED
from wopr.kahn.observed.events import lines_of, starts_observed_run
from wopr.kahn.timestamps import to_ts, write_ts
from wopr.protocol.documents import JsonObject, object_of, to_millis
from wopr.protocol.events import RunEvent
from wopr.protocol.payload_members import (
    SYSTEM,
    acting_agent_id,
    from_agent,
    node_id_of,
    number_member,
    present_members,
    ratio_member,
    text_member,
)


def annotation_lines(
    run_id: str,
    annotations: Iterable[JsonObject],
    agent_of_target: Callable[[str | None, str | None], str | None],
) -> list[bytes]:
    """Return the lines of annotations, oldest first, without annotations of unknown kinds.

    `agent_of_target` returns the agent of a target, by the target's event and node.
    """
    lines: list[bytes] = []
    for annotation in sorted(annotations, key=_order):
        verdict = _verdict(object_of(annotation.get("signal")))
        if verdict is not None:
            target = object_of(annotation.get("target"))
            agent_id = agent_of_target(
                text_member(target, "eventId"), text_member(target, "nodeId")
            )
            output = EventLines(write_ts(_created_at(annotation)), run_id)
            output.audit(agent_id, *verdict, _evidence(annotation))
            lines += output.lines
    return lines


def _order(annotation: JsonObject) -> tuple[datetime, str]:
    return _created_at(annotation), text_member(annotation, "annotationId") or ""


def _created_at(annotation: JsonObject) -> datetime:
    created = datetime.fromisoformat(annotation["createdAt"])
    return created.replace(tzinfo=UTC) if created.tzinfo is None else created


def _verdict(signal: JsonObject) -> tuple[str, AuditResult] | None:
    match signal.get("kind"):
        case "rating":
            rating = number_member(signal, "rating") or 0
            return "feedback:rating", "pass" if rating >= 4 else "warn" if rating >= 3 else "fail"
        case "flag":
            return "feedback:flag", "fail"
        case "correction":
            return "feedback:correction", "fail"
        case "label":
            return f"feedback:label:{text_member(signal, 'label') or ''}", "warn"
        case _:
            return None


def _evidence(annotation: JsonObject) -> JsonObject:
    signal = object_of(annotation.get("signal"))
    shown = {"rating": "rating", "label": "label"}.get(str(signal.get("kind")), "")
    return {
        "annotation_id": text_member(annotation, "annotationId") or "",
        "actor": text_member(object_of(annotation.get("actor")), "principalRef") or "",
        **present_members(signal, shown),
    }


ESCALATED_TYPE: Final = "core.workflowChain.confidence-escalated"
LOW_CONFIDENCE_KIND: Final = "low-confidence"
_PAUSE_TYPES: Final = frozenset(
    {"node.suspended", "interrupt.requested", "clarification.requested"}
)
_RESUME_TYPES: Final = frozenset({"node.resumed", "interrupt.resolved", "clarification.resolved"})


def project(
    events: Iterable[RunEvent],
    threshold: float | None = None,
    annotations: Iterable[JsonObject] = (),
) -> Iterator[bytes]:
    """Project the log of one run onto KAHN lines without newlines.

    Without `threshold` the run's options and the protocol's defaults apply. The annotations, in the
    form of the API, follow if the run has ended.
    """
    projector = Projector(threshold)
    for event in events:
        yield from projector.feed(event)
    yield from projector.finish(annotations)


class Projector:
    """Projects the log of one run as it grows.

    `threshold` applies to every decision. If it is None, `thresholds` applies.
    """

    def __init__(
        self, threshold: float | None = None, *, thresholds: ConfidenceThresholds | None = None
    ) -> None:
        self._context = ProjectionContext(
            given=threshold, thresholds=thresholds or ConfidenceThresholds()
        )
        self._run_id = ""
        self._workflow_id: str | None = None
        self._is_observed = False
        self._is_over = False
        # By KAHN id, in the order of their start.
        self._agents: dict[str, AgentState] = {}
        self._nodes: dict[str, AgentState] = {}
        # The supervisor whose decision a node waits for, by node id.
        self._waiting_decisions: dict[str, AgentState] = {}
        self._failed_node: str | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended. Only annotations can follow."""
        return self._is_over

    def feed(self, event: RunEvent) -> list[bytes]:
        """Take the next event of the log and return its lines."""
        if self._is_over:
            return []
        self._run_id = to_run_id(event.run_id)
        if event.type == "run.started":
            self._begin(event)
        if self._is_observed:
            return lines_of(event)
        output = EventLines(to_ts(event.timestamp), self._run_id, event.event_id, node_id_of(event))
        self._project_event(output, event, object_of(event.payload))
        return output.lines

    def finish(self, annotations: Iterable[JsonObject]) -> list[bytes]:
        """Return the lines of all annotations; empty while the run is active.

        With additional, newer annotations it returns the same lines followed by more lines.
        """
        if not self._is_over:
            return []
        return annotation_lines(self._run_id, annotations, self._agent_of_target)

    def _agent_of_target(self, event_id: str | None, node_id: str | None) -> str | None:
        agent = self._context.authors.get(event_id or "") or self._nodes.get(node_id or "")
        return None if agent is None else agent.agent_id

    def _begin(self, event: RunEvent) -> None:
        self._workflow_id = text_member(object_of(event.payload), "workflowId")
        self._is_observed = starts_observed_run(event)
        self._context.of_run = threshold_of(event)
        self._context.started_at = to_millis(event.timestamp)

    def _project_event(self, output: EventLines, event: RunEvent, payload: JsonObject) -> None:
        if event.type in TERMINAL_TYPES:
            self._end(output, event, payload)
        elif event.type == "cap.breached":
            checkpoint = f"cap:{text_member(payload, 'kind') or 'unknown'}"
            output.audit(None, checkpoint, "fail", present_members(payload, "limit", "observed"))
        elif event.type == "eval.scored":
            checkpoint = f"eval:{text_member(payload, 'taskId') or 'unknown'}"
            has_passed = payload.get("passed") is True
            output.audit(
                None,
                checkpoint,
                "pass" if has_passed else "fail",
                present_members(payload, "score"),
            )
        elif event.type == ESCALATED_TYPE:
            self._escalate(event, payload)
        else:
            agent = self._agent_of(output, event, payload)
            if agent is not None:
                self._context.authors[event.event_id] = agent
                self._apply(output, agent, event, payload)
        if event.type == "node.failed":
            self._failed_node = node_id_of(event)

    def _escalate(self, event: RunEvent, payload: JsonObject) -> None:
        """Record that a node waits because the confidence of a supervisor's decision is too low."""
        cause = event.causation_id
        author = self._context.authors.get(cause) if isinstance(cause, str) else None
        supervisor = author or self._context.supervisor
        if supervisor is not None:
            self._waiting_decisions[node_id_of(event) or ""] = supervisor
            floor = ratio_member(payload, "floor")
            supervisor.threshold = supervisor.threshold if floor is None else floor

    def _apply(
        self, output: EventLines, agent: AgentState, event: RunEvent, payload: JsonObject
    ) -> None:
        """Apply an event to its agent."""
        if event.type in HANDLERS:
            HANDLERS[event.type](output, agent, payload, self._context)
        elif event.type in _PAUSE_TYPES:
            kind = pause_kind(event)
            if kind is not None:
                output.link(text_member(payload, "interruptId"))
                agent.move_to(output, BLOCKED, kind)
            threshold = _threshold_in_payload(payload)
            if kind == LOW_CONFIDENCE_KIND and threshold is not None:
                agent.threshold = threshold
        elif event.type in _RESUME_TYPES:
            agent.resume(output, answer_of(payload))
            self._waiting_decisions.pop(node_id_of(event) or "", None)

    def _agent_of(
        self, output: EventLines, event: RunEvent, payload: JsonObject
    ) -> AgentState | None:
        """Return the agent of an event. The first action of an agent starts it."""
        is_handoff = event.type == "agent.handoff"
        name = (from_agent(payload) if is_handoff else None) or acting_agent_id(payload)
        node_id = node_id_of(event) or ""
        if name is None:
            return self._agent_without_name(event, node_id)
        is_act = event.type.startswith("agent.") or event.type in HANDLERS
        if not is_act and event.type != "node.started":
            return self._agents.get(to_agent_id(name))
        agent = self._get_or_start(output, event, name)
        if agent is not None and node_id and not (is_handoff and node_id in self._nodes):
            # A handoff may be logged with the node of the sender or of the receiver.
            self._nodes[node_id] = agent
        return agent

    def _agent_without_name(self, event: RunEvent, node_id: str) -> AgentState | None:
        """Return the agent of an event without an agent name: by its node, or the decision it waits for."""
        author = self._waiting_decisions.get(node_id)
        if author is not None and (event.type in _PAUSE_TYPES or event.type in _RESUME_TYPES):
            return author
        if node_id in self._nodes:
            return self._nodes[node_id]
        supervisor = self._context.supervisor
        if event.type in _PAUSE_TYPES and supervisor is not None and supervisor.is_asking:
            # The node implements the supervisor's decision to ask the user.
            self._waiting_decisions[node_id] = supervisor
            return supervisor
        return None

    def _get_or_start(self, output: EventLines, event: RunEvent, name: str) -> AgentState | None:
        if name == SYSTEM:
            return None
        agent_id = to_agent_id(name)
        if agent_id not in self._agents:
            fields: JsonObject = {"agent_id": agent_id, "task": self._task(event)}
            model = text_member(object_of(event.payload), "resolvedModel")
            if model is not None and event.type == "agent.invocation.started":
                fields["model"] = model
            fields["openwop_agent_id"] = name
            if self._run_id != event.run_id:
                fields["openwop_run_id"] = event.run_id
            output.write("agent_run_start", fields)
            self._agents[agent_id] = AgentState(agent_id, output.ts, name)
        agent = self._agents[agent_id]
        if event.type == "node.started":
            agent.version = text_member(object_of(object_of(event.payload).get("agent")), "version")
        return agent

    def _task(self, event: RunEvent) -> str:
        if self._workflow_id is None:
            return "run"
        node_id = node_id_of(event)
        return self._workflow_id if node_id is None else f"{self._workflow_id}/{node_id}"

    def _end(self, output: EventLines, event: RunEvent, payload: JsonObject) -> None:
        failed_node = text_member(payload, "failedNodeId", "nodeId") or self._failed_node
        ending = RunEnding(
            event.type,
            text_member(object_of(payload.get("error")), "code"),
            self._nodes.get(failed_node or ""),
        )
        for agent in self._agents.values():
            end_agent(output, agent, ending)
        self._is_over = True


def _threshold_in_payload(payload: JsonObject) -> float | None:
    """Return the threshold in the payload of a low-confidence wait, or in its member `data`."""
    named = ratio_member(payload, "threshold")
    return ratio_member(object_of(payload.get("data")), "threshold") if named is None else named
