"""The bridge from run logs to KAHN lines (section 14).

The projection is pure and prefix-stable: the same log gives the same bytes, and the lines of a
log's beginning are the beginning of its lines. So a live tail and an export agree, and a push of
either is always aligned with the other. The way back is in `wopr.fleet.observe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from wopr.fleet.bridge_acts import ACTS, Scene, Thresholds
from wopr.fleet.bridge_agent import Agent, Page
from wopr.fleet.bridge_ends import TERMINAL_TYPES, Ending, end
from wopr.fleet.bridge_facts import (
    SYSTEM,
    agent_named,
    answer_of,
    giver,
    node_of,
    object_of,
    pause_kind,
    ratio,
    some,
    text,
    threshold_of,
)
from wopr.fleet.bridge_feedback import annotation_lines
from wopr.fleet.bridge_ids import to_agent_id, to_run_id
from wopr.fleet.instants import to_ts
from wopr.fleet.lifecycle import BLOCKED
from wopr.fleet.observe import is_observed, line_of
from wopr.protocol.documents import JsonObject
from wopr.protocol.events import RunEvent
from wopr.protocol.times import to_millis

ESCALATED: Final = "core.workflowChain.confidence-escalated"
LOW_CONFIDENCE: Final = "low-confidence"
_PAUSED: Final = frozenset({"node.suspended", "interrupt.requested", "clarification.requested"})
_RESUMED: Final = frozenset({"node.resumed", "interrupt.resolved", "clarification.resolved"})


def project(
    events: Iterable[RunEvent],
    threshold: float | None = None,
    annotations: Iterable[JsonObject] = (),
) -> Iterator[bytes]:
    """Project the log of one run onto KAHN lines, which have no newline.

    Without a threshold each decision has the one that the run and the protocol's defaults give it.
    Annotations, as the API shows them, follow when the run is over.
    """
    projector = Projector(threshold)
    for event in events:
        yield from projector.feed(event)
    yield from projector.finish(annotations)


class Projector:
    """Projects the log of one run as it grows.

    A threshold holds for every decision. Without one, `asked` says how sure agents had to be.
    """

    def __init__(self, threshold: float | None = None, *, asked: Thresholds | None = None) -> None:
        self._scene = Scene(given=threshold, asked=asked or Thresholds())
        self._run_id = ""
        self._workflow_id: str | None = None
        self._is_observed = False
        self._is_over = False
        # In the order of their start, by their names on the wire.
        self._agents: dict[str, Agent] = {}
        self._nodes: dict[str, Agent] = {}
        # By the node that waits: the supervisor whose decision the wait is about.
        self._held_decisions: dict[str, Agent] = {}
        self._failed_node: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run's end has been seen; nothing but annotations can follow."""
        return self._is_over

    def feed(self, event: RunEvent) -> list[bytes]:
        """Take the next event of the log and return the lines it causes."""
        if self._is_over:
            return []
        self._run_id = to_run_id(event.run_id)
        if event.type == "run.started":
            self._begin(event)
        if self._is_observed:
            return line_of(event)
        page = Page(to_ts(event.timestamp), self._run_id, event.event_id, node_of(event))
        self._take(page, event, object_of(event.payload))
        return page.lines

    def finish(self, annotations: Iterable[JsonObject]) -> list[bytes]:
        """Return the lines of all annotations, or none while the run goes on.

        It changes nothing: with more annotations it returns the same lines and then more, as long
        as the new ones are younger.
        """
        if not self._is_over:
            return []
        return annotation_lines(self._run_id, annotations, self._agent_behind)

    def _agent_behind(self, event_id: str | None, node_id: str | None) -> str | None:
        agent = self._scene.authors.get(event_id or "") or self._nodes.get(node_id or "")
        return None if agent is None else agent.agent_id

    def _begin(self, event: RunEvent) -> None:
        self._workflow_id = text(object_of(event.payload), "workflowId")
        self._is_observed = is_observed(event)
        self._scene.of_run = threshold_of(event)
        self._scene.started_at = to_millis(event.timestamp)

    def _take(self, page: Page, event: RunEvent, payload: JsonObject) -> None:
        if event.type in TERMINAL_TYPES:
            self._end(page, event, payload)
        elif event.type == "cap.breached":
            checkpoint = f"cap:{text(payload, 'kind') or 'unknown'}"
            page.audit(None, checkpoint, "fail", some(payload, "limit", "observed"))
        elif event.type == "eval.scored":
            checkpoint = f"eval:{text(payload, 'taskId') or 'unknown'}"
            has_passed = payload.get("passed") is True
            page.audit(None, checkpoint, "pass" if has_passed else "fail", some(payload, "score"))
        elif event.type == ESCALATED:
            self._escalate(event, payload)
        else:
            agent = self._agent_of(page, event, payload)
            if agent is not None:
                self._scene.authors[event.event_id] = agent
                self._follow(page, agent, event, payload)
        if event.type == "node.failed":
            self._failed_node = node_of(event)

    def _escalate(self, event: RunEvent, payload: JsonObject) -> None:
        """Learn that a node waits because a supervisor is not sure enough of its decision."""
        cause = event.causation_id
        author = self._scene.authors.get(cause) if isinstance(cause, str) else None
        supervisor = author or self._scene.supervisor
        if supervisor is not None:
            self._held_decisions[node_of(event) or ""] = supervisor
            floor = ratio(payload, "floor")
            supervisor.threshold = supervisor.threshold if floor is None else floor

    def _follow(self, page: Page, agent: Agent, event: RunEvent, payload: JsonObject) -> None:
        """Let an event have its effect on the agent behind it."""
        if event.type in ACTS:
            ACTS[event.type](page, agent, payload, self._scene)
        elif event.type in _PAUSED:
            kind = pause_kind(event)
            if kind is not None:
                page.link(text(payload, "interruptId"))
                agent.go(page, BLOCKED, kind)
            needed = _threshold_named(payload)
            if kind == LOW_CONFIDENCE and needed is not None:
                agent.threshold = needed
        elif event.type in _RESUMED:
            agent.resume(page, answer_of(payload))
            self._held_decisions.pop(node_of(event) or "", None)

    def _agent_of(self, page: Page, event: RunEvent, payload: JsonObject) -> Agent | None:
        """Find the agent behind an event; one that shows itself acting for the first time starts."""
        is_handoff = event.type == "agent.handoff"
        name = (giver(payload) if is_handoff else None) or agent_named(payload)
        node_id = node_of(event) or ""
        if name is None:
            return self._unnamed(event, node_id)
        is_act = event.type.startswith("agent.") or event.type in ACTS
        if not is_act and event.type != "node.started":
            return self._agents.get(to_agent_id(name))
        agent = self._started(page, event, name)
        if agent is not None and node_id and not (is_handoff and node_id in self._nodes):
            # A hand-over is told on the giver's node or on the receiver's.
            self._nodes[node_id] = agent
        return agent

    def _unnamed(self, event: RunEvent, node_id: str) -> Agent | None:
        """The agent of an event that names none: by its node, or by the decision it waits for."""
        held = self._held_decisions.get(node_id)
        if held is not None and (event.type in _PAUSED or event.type in _RESUMED):
            return held
        if node_id in self._nodes:
            return self._nodes[node_id]
        supervisor = self._scene.supervisor
        if event.type in _PAUSED and supervisor is not None and supervisor.is_asking:
            # The node carries out the supervisor's decision to ask the user.
            self._held_decisions[node_id] = supervisor
            return supervisor
        return None

    def _started(self, page: Page, event: RunEvent, name: str) -> Agent | None:
        if name == SYSTEM:
            return None
        agent_id = to_agent_id(name)
        if agent_id not in self._agents:
            fields: JsonObject = {"agent_id": agent_id, "task": self._task(event)}
            model = text(object_of(event.payload), "resolvedModel")
            if model is not None and event.type == "agent.invocation.started":
                fields["model"] = model
            fields["openwop_agent_id"] = name
            if self._run_id != event.run_id:
                fields["openwop_run_id"] = event.run_id
            page.write("agent_run_start", fields)
            self._agents[agent_id] = Agent(agent_id, page.ts, name)
        agent = self._agents[agent_id]
        if event.type == "node.started":
            agent.version = text(object_of(object_of(event.payload).get("agent")), "version")
        return agent

    def _task(self, event: RunEvent) -> str:
        if self._workflow_id is None:
            return "run"
        node_id = node_of(event)
        return self._workflow_id if node_id is None else f"{self._workflow_id}/{node_id}"

    def _end(self, page: Page, event: RunEvent, payload: JsonObject) -> None:
        failed_node = text(payload, "failedNodeId", "nodeId") or self._failed_node
        ending = Ending(
            event.type,
            text(object_of(payload.get("error")), "code"),
            self._nodes.get(failed_node or ""),
        )
        for agent in self._agents.values():
            end(page, agent, ending)
        self._is_over = True


def _threshold_named(payload: JsonObject) -> float | None:
    """The threshold that a low-confidence wait names; its data may be one level deeper."""
    named = ratio(payload, "threshold")
    return ratio(object_of(payload.get("data")), "threshold") if named is None else named
