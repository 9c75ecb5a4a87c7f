"""The bridge from KAHN lines to the events of an observed run (14.7).

Every line becomes one vendor event that contains the line, followed by the standard events with the
same meaning. The results are drafts. The host's appender assigns their ids and sequences, redacts
them and stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec

from wopr.kahn.events import (
    EVENT_NAMES,
    AgentRunEnd,
    AgentRunStart,
    AgentTransition,
    AuditCheckpoint,
    AuditResult,
    CiOutcome,
    EventBase,
    RunEnd,
    RunStart,
    ToolInvocation,
    event_name,
)
from wopr.kahn.lifecycle import BLOCKED
from wopr.kahn.lines import KahnLine
from wopr.protocol.documents import Json, JsonObject, Unset, encode, object_of
from wopr.protocol.events import RunEvent
from wopr.protocol.observed_ids import OBSERVED_WORKFLOW
from wopr.protocol.resources.fleet import AgentOutcome


class EventDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An event before it is appended to the log.

    `cause` is the index of an earlier draft in the same list.
    """

    type: str
    payload: JsonObject
    timestamp: str
    node_id: str | None = None
    cause: int | None = None


class AnnotationDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An annotation of the whole run, not stored yet."""

    signal: JsonObject
    actor: str
    timestamp: str
    note: str


Draft: TypeAlias = EventDraft | AnnotationDraft


class LineDrafts:
    """Collects the drafts of one line."""

    def __init__(self, timestamp: str, advertises: Callable[[str], bool]) -> None:
        self.items: list[Draft] = []
        self._timestamp = timestamp
        self._advertises = advertises
        self._line_event: int | None = None

    def add_line_event(self, event_type: str, payload: JsonObject, node_id: str | None) -> None:
        """Add the event that contains the line. It is the cause of the drafts that follow."""
        self._line_event = self._append(event_type, payload, node_id, None)

    def add(
        self,
        event_type: str,
        payload: JsonObject,
        node_id: str | None = None,
        cause: int | None = None,
    ) -> int | None:
        """Add a standard event and return its index, or None if the host may not emit it."""
        if not self._advertises(event_type):
            return None
        return self._append(
            event_type, payload, node_id, self._line_event if cause is None else cause
        )

    def annotate(self, audit: AuditCheckpoint) -> None:
        """Add the result of a checkpoint of the run as an annotation."""
        text = f"{audit.checkpoint_id}={audit.result}"
        is_flag = audit.result == "fail"
        signal = {"kind": "flag"} if is_flag else {"kind": "label", "label": text}
        actor = f"kahn:{audit.run_id}"
        self.items.append(
            AnnotationDraft(signal=signal, actor=actor, timestamp=self._timestamp, note=text)
        )

    def _append(
        self, event_type: str, payload: JsonObject, node_id: str | None, cause: int | None
    ) -> int:
        self.items.append(
            EventDraft(
                type=event_type,
                payload=payload,
                timestamp=self._timestamp,
                node_id=node_id,
                cause=cause,
            )
        )
        return len(self.items) - 1


TYPE_ID: Final = "vendor.kahn.agent"
# The prefix of the agent id in the log if the producer did not give one.
AGENT_PREFIX: Final = "host:kahn:"
_VERDICTS: Final[dict[AuditResult, str]] = {"pass": "pass", "fail": "fail", "warn": "revise"}


class ObservedAgent:
    """The state of one agent of an observed run."""

    def __init__(self, run_id: str, agent_id: str, openwop_agent_id: Json) -> None:
        self.outcome: AgentOutcome | None = None
        self._run_id = run_id
        self._node_id = agent_id
        is_name = isinstance(openwop_agent_id, str) and 3 <= len(openwop_agent_id) <= 256
        self._agent_id = openwop_agent_id if is_name else f"{AGENT_PREFIX}{agent_id}"
        self._is_started = False
        self._has_failed = False
        self._pauses = 0
        self._calls = 0

    def derive(self, drafts: LineDrafts, event: EventBase) -> None:
        """Add the standard events of a line. After the agent's end only a checkpoint has one."""
        if self.outcome is not None and not isinstance(event, AuditCheckpoint):
            return
        match event:
            case AgentRunStart():
                self._start(drafts)
            case AgentTransition():
                self._move(drafts, event)
            case ToolInvocation():
                self._call(drafts, event)
            case AuditCheckpoint():
                payload = {
                    "agentId": self._agent_id,
                    "target": event.checkpoint_id,
                    "verdict": _VERDICTS[event.result],
                    "criteria": [event.checkpoint_id],
                }
                drafts.add("agent.verified", payload, self._node_id)
            case AgentRunEnd():
                self._end(drafts, event)
            case _:
                return

    def _start(self, drafts: LineDrafts) -> None:
        if self._is_started:
            return
        self._is_started = True
        payload = {
            "nodeId": self._node_id,
            "typeId": TYPE_ID,
            "agent": {"agentId": self._agent_id},
        }
        drafts.add("node.started", payload, self._node_id)

    def _move(self, drafts: LineDrafts, event: AgentTransition) -> None:
        reason = "" if isinstance(event.reason, Unset) else event.reason
        if event.to == "thinking" and event.from_ == BLOCKED:
            payload: JsonObject = {"nodeId": self._node_id, "interruptId": f"int-{self._key()}"}
            drafts.add("node.resumed", payload, self._node_id)
        elif event.to == "thinking":
            payload = {"agentId": self._agent_id, "reasoning": reason, "verbosity": "summary"}
            drafts.add("agent.reasoned", payload, self._node_id)
        elif event.to == BLOCKED:
            self._pauses += 1
            payload = {
                "nodeId": self._node_id,
                "kind": "clarification",
                "interruptId": f"int-{self._key()}",
                "key": self._key(),
            }
            drafts.add("node.suspended", payload, self._node_id)
        elif event.to == "failed":
            self._has_failed = True
            error = {"code": "agent_failed", "message": reason or "the agent failed"}
            drafts.add("node.failed", {"nodeId": self._node_id, "error": error}, self._node_id)

    def _key(self) -> str:
        return f"{self._run_id}:{self._node_id}:{self._pauses}"

    def _call(self, drafts: LineDrafts, event: ToolInvocation) -> None:
        self._calls += 1
        call: JsonObject = {
            "agentId": self._agent_id,
            "toolName": event.tool_name,
            "callId": f"call-{self._node_id}-{self._calls}",
        }
        inputs = {} if isinstance(event.input_summary, Unset) else {"inputs": event.input_summary}
        cause = drafts.add("agent.toolCalled", call | inputs, self._node_id)
        returned = call | {
            "status": "ok" if event.ok else "error",
            "durationMs": round(event.duration_s * 1000),
        }
        drafts.add("agent.toolReturned", returned | _result(event), self._node_id, cause)

    def _end(self, drafts: LineDrafts, event: AgentRunEnd) -> None:
        self.outcome = event.outcome
        decision: JsonObject = {
            "outcome": event.outcome,
            "totals": {
                "steps": event.total_steps,
                "toolCalls": event.total_tool_calls,
                "auditCheckpoints": event.total_audit_checkpoints,
                "auditsPassed": event.audits_passed,
                "auditsFailed": event.audits_failed,
                "durationS": event.total_duration_s,
            },
        }
        if not isinstance(event.convergence_score, Unset):
            decision["convergenceScore"] = event.convergence_score
        # No confidence is set, because the host would have to ask a person for a low confidence.
        decided = {"agentId": self._agent_id, "decision": decision}
        drafts.add("agent.decided", decided, self._node_id)
        if not self._has_failed:
            drafts.add("node.completed", {"nodeId": self._node_id}, self._node_id)


def _result(event: ToolInvocation) -> JsonObject:
    """Return the outcome or the error of a tool call."""
    if not event.ok and not isinstance(event.error, Unset):
        return {"error": {"code": "tool_error", "message": event.error or "the tool failed"}}
    if isinstance(event.output_summary, Unset):
        return {}
    return {"outcome": event.output_summary}


SOURCE: Final = "kahn"
_EVENT_PREFIX: Final = "kahn."
# The vendor events that contain the lines.
LINE_EVENT_TYPES: Final = tuple(sorted(_EVENT_PREFIX + name for name in EVENT_NAMES))
_CLEAN: Final[frozenset[CiOutcome]] = frozenset({"clean", "clean_with_flake"})
# The member with the line itself, if encoding its fields again would give other bytes.
_RAW: Final = "kahn_line"


def observe(
    lines: Iterable[KahnLine], advertises: Callable[[str], bool] | None = None
) -> Iterator[list[Draft]]:
    """Convert the lines of one KAHN run into lists of drafts: one per line, and one for the end."""
    observer = Observer(advertises)
    for line in lines:
        yield observer.feed(line)
    yield observer.close()


class Observer:
    """Converts the lines of one KAHN run into drafts.

    `advertises` returns whether the host may emit a standard event; without it, all are emitted.
    `redact` removes secrets from a value; it returns the same object if there is no secret.
    """

    def __init__(
        self,
        advertises: Callable[[str], bool] | None = None,
        redact: Callable[[Json], Json] | None = None,
    ) -> None:
        self._advertises = advertises or _advertises_all
        self._redact = redact or _keep_unchanged
        self._agents: dict[str, ObservedAgent] = {}
        # The outcome of the graph of nodes, if there is a graph; None while it runs.
        self._graphs: list[CiOutcome | None] = []
        self._latest = ""
        self._is_closed = False

    def feed(self, line: KahnLine) -> list[Draft]:
        """Take the next line and return its drafts; the cause of a draft is an index in this list.

        After `close` the drafts have no standard events, because the run has ended.
        """
        event = line.event
        is_first = not self._latest
        self._latest = max(self._latest, event.ts)
        drafts = LineDrafts(self._latest, self._advertises)
        if is_first:
            metadata = {"source": SOURCE, "runId": event.run_id}
            drafts.add("run.started", {"workflowId": OBSERVED_WORKFLOW, "metadata": metadata})
        agent_id = getattr(event, "agent_id", None)
        node_id = None if agent_id is None else self._node_id(agent_id)
        drafts.add_line_event(f"{_EVENT_PREFIX}{event_name(event)}", self._payload(line), node_id)
        if isinstance(event, RunStart | RunEnd):
            self._graphs = [event.outcome if isinstance(event, RunEnd) else None]
        elif isinstance(event, AuditCheckpoint) and event.agent_id is None:
            drafts.annotate(event)
        elif agent_id is not None and not self._is_closed:
            self._agent(agent_id, line).derive(drafts, event)
        return drafts.items

    def _agent(self, agent_id: str, line: KahnLine) -> ObservedAgent:
        if agent_id not in self._agents:
            is_start = isinstance(line.event, AgentRunStart)
            name = line.fields.get("openwop_agent_id") if is_start else None
            node_id = self._node_id(agent_id)
            self._agents[agent_id] = ObservedAgent(line.event.run_id, node_id, name)
        return self._agents[agent_id]

    def _node_id(self, agent_id: str) -> str:
        """Return the node id of an agent; an id that looks like a credential is replaced by its hash."""
        if self._redact(agent_id) == agent_id:
            return agent_id
        return f"redacted-{sha256(agent_id.encode()).hexdigest()[:8]}"

    def _payload(self, line: KahnLine) -> JsonObject:
        """Return the line's fields, and its bytes if encoding the fields would give other bytes."""
        fields = line.fields
        # The same encoder writes the log, so the comparison is also valid for the stored event.
        if _RAW not in fields and encode(fields) == line.raw:
            return fields
        # An escape sequence in the bytes could hide a secret from the redaction of the log.
        if self._redact(fields) is not fields:
            return fields
        return {**fields, _RAW: line.raw.decode()}

    def close(self) -> list[Draft]:
        """Return the draft that ends the run if all its agents and its graph have ended.

        Returns no draft if the run is active or was closed before. Call it after a push, and not
        after a line: after the end of the last open agent other agents may start.
        """
        outcomes = [*(agent.outcome for agent in self._agents.values()), *self._graphs]
        if self._is_closed or not outcomes or None in outcomes:
            return []
        self._is_closed = True
        drafts = LineDrafts(self._latest, self._advertises)
        if "aborted" in outcomes:
            drafts.add("run.cancelled", {"reason": "kahn:aborted"})
        elif "escaped" in outcomes:
            message = "an agent left its scope"
            drafts.add("run.failed", {"error": {"code": "agent_escaped", "message": message}})
        elif not _CLEAN.issuperset(self._graphs):
            message = f"the graph ended {self._graphs[0]}"
            drafts.add("run.failed", {"error": {"code": "graph_not_clean", "message": message}})
        else:
            drafts.add("run.completed", {})
        return drafts.items


def starts_observed_run(started: RunEvent) -> bool:
    """Return whether a run was observed, from its `run.started` event."""
    payload = object_of(started.payload)
    source: object = object_of(payload.get("metadata")).get("source")
    return payload.get("workflowId") == OBSERVED_WORKFLOW and source == SOURCE


def contains_line(event: RunEvent) -> bool:
    """Return whether an event of an observed run contains a line; a derived event does not."""
    return (
        event.type.startswith(_EVENT_PREFIX)
        and event.type.removeprefix(_EVENT_PREFIX) in EVENT_NAMES
    )


def lines_of(event: RunEvent) -> list[bytes]:
    """Return the line in an event of an observed run, redacted like the event; empty for others."""
    if not contains_line(event):
        return []
    payload: JsonObject = event.payload
    raw = payload.get(_RAW)
    return [raw.encode() if isinstance(raw, str) else encode(payload)]


def _keep_unchanged(value: Json) -> Json:
    return value


def _advertises_all(event_type: str) -> bool:
    return True
