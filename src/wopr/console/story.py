"""What agents did, told in order: reasoned, called, returned, handed over, decided, and who ratified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from wopr.console.json_values import list_of, object_of
from wopr.console.run_log import Entry
from wopr.console.words import compact
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import INTERRUPT_KIND

# Who must be how sure: the run, the agent's manifest or the host says so.
ThresholdOf: TypeAlias = Callable[[str], float | None]
# The name under which to ask how sure a supervisor must be of what it orders.
SUPERVISOR: Final = ""
# So many beats are told on the page of a run; its events have all of them.
MOST_BEATS: Final = 100


@dataclass(frozen=True, slots=True)
class Sureness:
    """How sure an agent was, and how sure it had to be."""

    confidence: float
    threshold: float | None

    @property
    def is_low(self) -> bool:
        """Whether a person had to be asked."""
        return self.threshold is not None and self.confidence < self.threshold


@dataclass(slots=True, kw_only=True)
class Beat:
    """One thing that an agent did, or that was done about it."""

    kind: str
    title: str
    entry: Entry
    agent_id: str = ""
    text: str = ""
    document: Json = None
    sureness: Sureness | None = None
    # A call's return: its status and what came back.
    status: str = ""
    took: int | None = None
    returned: Json = None
    returned_at: int | None = None


@dataclass(slots=True)
class Turn:
    """The beats of one node's execution."""

    node_id: str
    sequence: int
    agent_id: str = ""
    beats: list[Beat] = field(default_factory=list[Beat])

    @property
    def size(self) -> int:
        """How many beats it has."""
        return len(self.beats)


def story(entries: Sequence[Entry], threshold_of: ThresholdOf) -> list[Turn]:
    """The turns of a log, in order; a node that starts again has a turn of its own."""
    turns: dict[int, Turn] = {}
    # The last start of each node. Most nodes are no agents and get no turn.
    started: dict[str, Entry] = {}
    for entry in entries:
        kind = entry.event.type
        if kind == "node.started":
            started[entry.node_id] = entry
        elif (tell := _TELLERS.get(kind)) is not None and entry.node_id in started:
            start = started[entry.node_id]
            if start.sequence not in turns:
                turns[start.sequence] = Turn(start.node_id, start.sequence, start.agent_id)
            tell(turns[start.sequence], entry, threshold_of)
    in_order = (turns[sequence] for sequence in sorted(turns))
    return [turn for turn in in_order if any(beat.kind != "asked" for beat in turn.beats)]


def newest(turns: Sequence[Turn], most: int = MOST_BEATS) -> list[Turn]:
    """The turns that the last so many beats belong to, with those beats only."""
    found: list[Turn] = []
    left = most
    for turn in reversed(turns):
        if left <= 0:
            break
        found.append(replace(turn, beats=turn.beats[-left:]))
        left -= len(turn.beats)
    return found[::-1]


def _reasoned(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    tokens = payload.get("tokenCount")
    title = f"reasoned, {tokens} tokens" if tokens else "reasoned"
    _drop_open_reasoning(turn)
    turn.beats.append(_beat("reasoned", title, entry, text=str(payload.get("reasoning", ""))))


def _reasoning(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    """A piece of a thought that is not whole yet: shown until the whole replaces it."""
    delta = str(entry.payload.get("delta", ""))
    last = turn.beats[-1] if turn.beats else None
    if last is not None and last.kind == "reasoning":
        last.text += delta
    else:
        turn.beats.append(_beat("reasoning", "is reasoning", entry, text=delta))


def _drop_open_reasoning(turn: Turn) -> None:
    if turn.beats and turn.beats[-1].kind == "reasoning":
        turn.beats.pop()


def _called(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    name = str(payload.get("toolName", ""))
    turn.beats.append(
        _beat("called", f"called {name}", entry, document=payload.get("inputs"), status="open")
    )


def _returned(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    # From the end: a call is seldom far from its return, and there may be thousands.
    call = next((b for b in reversed(turn.beats) if _is_call(b, payload.get("callId"))), None)
    if call is None:
        call = _beat("called", f"called {payload.get('toolName', '')}", entry)
        turn.beats.append(call)
    took = payload.get("durationMs")
    call.status = str(payload.get("status", "error" if "error" in payload else "ok"))
    call.took = took if isinstance(took, int) else None
    call.returned = payload.get("error", payload.get("outcome"))
    call.returned_at = entry.sequence


def _is_call(beat: Beat, call_id: Json) -> bool:
    return beat.kind == "called" and beat.entry.payload.get("callId") == call_id


def _handed_over(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    title = f"handed over to {payload.get('toAgentId', '')}"
    text = str(payload.get("reason", ""))
    turn.beats.append(_beat("handoff", title, entry, text=text, document=payload.get("context")))


def _decided(turn: Turn, entry: Entry, threshold_of: ThresholdOf) -> None:
    payload = entry.payload
    sureness = sureness_of(payload.get("confidence"), threshold_of(entry.agent_id))
    turn.beats.append(
        _beat(
            "decided",
            "decided",
            entry,
            text=str(payload.get("reasoning", "")),
            document=payload.get("decision"),
            sureness=sureness,
        )
    )


def _orchestrated(turn: Turn, entry: Entry, threshold_of: ThresholdOf) -> None:
    decision = object_of(entry.payload.get("decision"))
    floor = threshold_of(SUPERVISOR)
    turn.beats.append(
        _beat(
            "decided",
            _ORCHESTRATED.get(str(decision.get("kind")), _other)(decision),
            entry,
            sureness=sureness_of(decision.get("confidence"), floor),
        )
    )


def _next_worker(decision: JsonObject) -> str:
    return f"sent the work to {', '.join(map(str, list_of(decision.get('nextWorkerIds'))))}"


def _ask_user(decision: JsonObject) -> str:
    return f"asked a person: {decision.get('prompt', '')}"


def _terminate(decision: JsonObject) -> str:
    reason = decision.get("reason")
    return f"ended the work: {reason}" if reason else "ended the work"


def _other(decision: JsonObject) -> str:
    return f"decided {compact(decision)}"


_ORCHESTRATED: Final = {
    "next-worker": _next_worker,
    "ask-user": _ask_user,
    "terminate": _terminate,
}


def _escalated(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    floor = payload.get("floor")
    sureness = sureness_of(payload.get("confidence"), floor if isinstance(floor, float) else None)
    turn.beats.append(_beat("escalated", "was not sure enough", entry, sureness=sureness))


def _suspended(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    kind = payload.get(INTERRUPT_KIND, payload.get("kind", "an answer"))
    if kind != "low-confidence":
        turn.beats.append(_beat("asked", f"waits for {kind}", entry))
        return
    for beat in reversed(turn.beats):
        if beat.kind == "decided" and beat.sureness is not None:
            needed = payload.get("threshold")
            if isinstance(needed, int | float):
                beat.sureness = Sureness(beat.sureness.confidence, float(needed))
            break
    turn.beats.append(_beat("escalated", "waits for a person to ratify it", entry))


def _resolved(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    by, value = payload.get("resolvedBy"), payload.get("resumeValue")
    title = f"{by} answered" if by else "was answered"
    turn.beats.append(_beat("answered", title, entry, document=value))


def _verified(turn: Turn, entry: Entry, _: ThresholdOf) -> None:
    payload = entry.payload
    title = f"verified {payload.get('target', '')}: {payload.get('verdict', '')}"
    turn.beats.append(
        _beat("verified", title, entry, sureness=sureness_of(payload.get("confidence"), None))
    )


def _beat(kind: str, title: str, entry: Entry, **more: Json) -> Beat:
    return Beat(kind=kind, title=title, entry=entry, agent_id=entry.agent_id, **more)


def sureness_of(confidence: Json, threshold: float | None) -> Sureness | None:
    """How sure, if that was said at all."""
    if isinstance(confidence, bool) or not isinstance(confidence, int | float):
        return None
    return Sureness(float(confidence), threshold)


_TELLERS: Final[dict[str, Callable[[Turn, Entry, ThresholdOf], None]]] = {
    "agent.reasoned": _reasoned,
    "agent.reasoning.delta": _reasoning,
    "agent.toolCalled": _called,
    "agent.toolReturned": _returned,
    "agent.handoff": _handed_over,
    "agent.decided": _decided,
    "agent.verified": _verified,
    "runOrchestrator.decided": _orchestrated,
    "core.workflowChain.confidence-escalated": _escalated,
    "node.suspended": _suspended,
    "interrupt.resolved": _resolved,
}
