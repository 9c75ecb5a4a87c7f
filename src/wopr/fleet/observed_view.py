"""An observed run as it stands: the snapshot that its log adds up to, without a workflow behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from wopr.fleet.bridge_facts import object_of, text
from wopr.fleet.observe import OBSERVED_WORKFLOW
from wopr.protocol.agents import AgentRef
from wopr.protocol.documents import UNSET, JsonObject, Unset
from wopr.protocol.events import EVENT_LOG_SCHEMA_VERSION, RunEvent
from wopr.protocol.runs import NodeView, Owner, RunError, RunSnapshot, RunStatus
from wopr.protocol.times import to_millis

WORKFLOW_VERSION: Final = "1"
_ENDS: Final[dict[str, RunStatus]] = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
}


class View:
    """Follows the log of an observed run; its agents are shown as nodes."""

    def __init__(self, tenant: str, run_id: str) -> None:
        self.last_sequence = -1
        self.started_at = 0
        self.ended_at: int | None = None
        self._tenant = tenant
        self._run_id = run_id
        self._nodes: dict[str, NodeView] = {}
        self._agent: AgentRef | Unset = UNSET
        self._ended: tuple[RunStatus, str] | None = None
        self._error: RunError | Unset = UNSET
        self._metadata: JsonObject = {}
        self._began: str | Unset = UNSET

    @property
    def status(self) -> RunStatus:
        """The run waits as soon as one of its agents does."""
        if self._ended is not None:
            return self._ended[0]
        return "running" if self._waiting() is None else "waiting-input"

    def fold(self, event: RunEvent) -> None:
        """Take the next event of the log."""
        self.last_sequence = event.sequence
        if event.type not in _SHOWN:
            return
        payload = object_of(event.payload)
        if event.type == "run.started":
            self._began = event.timestamp
            self.started_at = to_millis(event.timestamp)
            self._metadata = object_of(payload.get("metadata"))
        elif event.type in _ENDS:
            self._ended = _ENDS[event.type], event.timestamp
            self.ended_at = to_millis(event.timestamp)
            self._error = _error(payload) if event.type == "run.failed" else UNSET
        elif event.type in _NODE_CHANGES and isinstance(event.node_id, str):
            before = self._nodes.get(event.node_id, NodeView(status="running", attempts=1))
            self._nodes[event.node_id] = _NODE_CHANGES[event.type](before, event, payload)
            if event.type == "node.started":
                self._agent = AgentRef(agent_id=str(object_of(payload.get("agent"))["agentId"]))

    def snapshot(self) -> RunSnapshot:
        """The run as it is shown."""
        ended = UNSET if self._ended is None else self._ended[1]
        return RunSnapshot(
            run_id=self._run_id,
            workflow_id=OBSERVED_WORKFLOW,
            workflow_version=WORKFLOW_VERSION,
            status=self.status,
            owner=Owner(tenant=self._tenant),
            current_node_id=(None if self._ended else self._waiting()) or UNSET,
            started_at=self._began,
            completed_at=ended,
            ended_at=ended,
            node_states=dict(self._nodes),
            agent=self._agent,
            error=self._error,
            event_log_schema_version=EVENT_LOG_SCHEMA_VERSION,
            metadata=self._metadata,
            last_sequence=self.last_sequence,
        )

    def _waiting(self) -> str | None:
        return next((n for n, node in self._nodes.items() if node.status == "suspended"), None)


def _started(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, started_at=event.timestamp)


def _suspended(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, status="suspended")


def _resumed(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, status="running")


def _failed(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, status="failed", completed_at=event.timestamp, error=_error(payload))


def _completed(node: NodeView, event: RunEvent, payload: JsonObject) -> NodeView:
    return replace(node, status="completed", completed_at=event.timestamp)


_NODE_CHANGES: Final[dict[str, Callable[[NodeView, RunEvent, JsonObject], NodeView]]] = {
    "node.started": _started,
    "node.suspended": _suspended,
    "node.resumed": _resumed,
    "node.failed": _failed,
    "node.completed": _completed,
}
# The events that change what is shown; most hold a line and do not.
_SHOWN: Final = frozenset({"run.started", *_ENDS, *_NODE_CHANGES})


def _error(payload: JsonObject) -> RunError:
    error = object_of(payload.get("error"))
    return RunError(
        code=text(error, "code") or "unknown", message=text(error, "message") or "it failed"
    )
