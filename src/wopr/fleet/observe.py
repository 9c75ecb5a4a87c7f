"""The bridge from KAHN lines to the log of an observed run (14.7).

Every line becomes one vendor event that holds it whole, which alone makes the direction lossless,
and then the standard events that say the same. The result are drafts: the host's appender stamps,
redacts and stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Final

from wopr.fleet.bridge_facts import object_of
from wopr.fleet.drafts import Batch, Draft
from wopr.fleet.events import (
    VARIANTS,
    AgentRunStart,
    AuditCheckpoint,
    CiOutcome,
    RunEnd,
    RunStart,
    variant,
)
from wopr.fleet.observed_agent import ObservedAgent
from wopr.fleet.reading import KahnLine
from wopr.protocol.documents import Json, JsonObject, encode
from wopr.protocol.events import RunEvent

OBSERVED_WORKFLOW: Final = "kahn.observed"
SOURCE: Final = "kahn"
_VENDOR: Final = "kahn."
# The vendor events that hold the lines.
LINE_EVENT_TYPES: Final = tuple(sorted(_VENDOR + name for name in VARIANTS))
_CLEAN: Final[frozenset[CiOutcome]] = frozenset({"clean", "clean_with_flake"})
# The line itself, beside its fields, where encoding the fields again would give other bytes.
_RAW: Final = "kahn_line"


def observe(
    lines: Iterable[KahnLine], advertises: Callable[[str], bool] | None = None
) -> Iterator[list[Draft]]:
    """Turn the lines of one KAHN run into drafts, a list for each line and one for the run's end."""
    observer = Observer(advertises)
    for line in lines:
        yield observer.feed(line)
    yield observer.close()


class Observer:
    """Follows one KAHN run as its lines come in.

    `advertises` says which standard events the host may emit; without it, all. `redact` removes
    secrets from a value and returns the same object where there is none.
    """

    def __init__(
        self,
        advertises: Callable[[str], bool] | None = None,
        redact: Callable[[Json], Json] | None = None,
    ) -> None:
        self._advertises = advertises or _everything
        self._redact = redact or _unchanged
        self._agents: dict[str, ObservedAgent] = {}
        # How a graph of nodes ended; not at all while one is under way.
        self._graphs: list[CiOutcome | None] = []
        self._latest = ""
        self._is_closed = False

    def feed(self, line: KahnLine) -> list[Draft]:
        """Take the next line and return its drafts; a draft's cause is a place in this list.

        After `close` only the vendor event comes, and annotations: a log ends with its run.
        """
        event = line.event
        is_first = not self._latest
        self._latest = max(self._latest, event.ts)
        batch = Batch(self._latest, self._advertises)
        if is_first:
            metadata = {"source": SOURCE, "runId": event.run_id}
            batch.add("run.started", {"workflowId": OBSERVED_WORKFLOW, "metadata": metadata})
        agent_id = getattr(event, "agent_id", None)
        node_id = None if agent_id is None else self._node_id(agent_id)
        batch.vendor(f"{_VENDOR}{variant(event)}", self._payload(line), node_id)
        if isinstance(event, RunStart | RunEnd):
            self._graphs = [event.outcome if isinstance(event, RunEnd) else None]
        elif isinstance(event, AuditCheckpoint) and event.agent_id is None:
            batch.annotate(event)
        elif agent_id is not None and not self._is_closed:
            self._agent(agent_id, line).derive(batch, event)
        return batch.drafts

    def _agent(self, agent_id: str, line: KahnLine) -> ObservedAgent:
        if agent_id not in self._agents:
            is_start = isinstance(line.event, AgentRunStart)
            name = line.fields.get("openwop_agent_id") if is_start else None
            node_id = self._node_id(agent_id)
            self._agents[agent_id] = ObservedAgent(line.event.run_id, node_id, name)
        return self._agents[agent_id]

    def _node_id(self, agent_id: str) -> str:
        """The agent's name on the log; an id that looks like a credential is replaced by a hash."""
        if self._redact(agent_id) == agent_id:
            return agent_id
        return f"redacted-{sha256(agent_id.encode()).hexdigest()[:8]}"

    def _payload(self, line: KahnLine) -> JsonObject:
        """The line's fields, and its bytes where encoding the fields would give other bytes."""
        fields = line.fields
        # By the encoder that writes the log, so that what is equal here is equal when it is read.
        if _RAW not in fields and encode(fields) == line.raw:
            return fields
        # An escape in the bytes can hide a secret from the redaction of the log.
        if self._redact(fields) is not fields:
            return fields
        return {**fields, _RAW: line.raw.decode()}

    def close(self) -> list[Draft]:
        """End the run if every agent and graph that was seen has; otherwise, and again: nothing.

        Call it where the input pauses, such as after a push: further agents may start, and audits
        come in, after the last open agent's end.
        """
        outcomes = [*(agent.outcome for agent in self._agents.values()), *self._graphs]
        if self._is_closed or not outcomes or None in outcomes:
            return []
        self._is_closed = True
        batch = Batch(self._latest, self._advertises)
        if "aborted" in outcomes:
            batch.add("run.cancelled", {"reason": "kahn:aborted"})
        elif "escaped" in outcomes:
            message = "an agent left its scope"
            batch.add("run.failed", {"error": {"code": "agent_escaped", "message": message}})
        elif not _CLEAN.issuperset(self._graphs):
            message = f"the graph ended {self._graphs[0]}"
            batch.add("run.failed", {"error": {"code": "graph_not_clean", "message": message}})
        else:
            batch.add("run.completed", {})
        return batch.drafts


def is_observed(started: RunEvent) -> bool:
    """Tell by its `run.started` whether a run was observed and not run."""
    payload = object_of(started.payload)
    source: object = object_of(payload.get("metadata")).get("source")
    return payload.get("workflowId") == OBSERVED_WORKFLOW and source == SOURCE


def holds_line(event: RunEvent) -> bool:
    """Tell whether an event of an observed run holds a line; a derived event does not."""
    return event.type.startswith(_VENDOR) and event.type.removeprefix(_VENDOR) in VARIANTS


def line_of(event: RunEvent) -> list[bytes]:
    """The line that an event of an observed run holds, redacted as it is; none for a derived event."""
    if not holds_line(event):
        return []
    payload: JsonObject = event.payload
    raw = payload.get(_RAW)
    return [raw.encode() if isinstance(raw, str) else encode(payload)]


def _unchanged(value: Json) -> Json:
    return value


def _everything(event_type: str) -> bool:
    return True
