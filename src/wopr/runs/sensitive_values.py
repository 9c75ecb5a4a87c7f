"""Sensitive values of a run: masked on its log, and stored encrypted with the run.

Text of a sensitive value is masked everywhere, also where a node copies it to another place or
repeats it in an error.

A response to a node with sensitive outputs is sensitive too. Few values are possible, so even a
hash would reveal it. Words of the protocol stay visible, because they do not show the content.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from wopr.engine.channels import is_context_channel, reduce
from wopr.engine.fold.fold import channel_limits
from wopr.engine.graph import Graph, default_channels, default_variables
from wopr.engine.interrupts import HELD_OUTPUTS
from wopr.engine.state import ENDED, NodeState, RunState
from wopr.protocol.documents import UNSET, Json, JsonObject, is_object
from wopr.security.encryption import Seal
from wopr.security.masking import mask_members
from wopr.security.redact import MIN_SECRET, Redactor, StreamRedactor
from wopr.security.shapes import MASK

SENSITIVE_ID: Final = "sensitive"
_STRUCTURE: Final = frozenset({"kind", "key", "name", "status", "phase", "drainPolicy"})


class SensitiveTexts:
    """The sensitive texts of one run."""

    def __init__(self) -> None:
        self._redactor: Redactor | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there are no sensitive texts."""
        return self._redactor is None

    def add(self, value: Json) -> None:
        """Mask every text of a value from now on."""
        for text in maskable_texts(value):
            if self._redactor is None:
                self._redactor = Redactor()
            self._redactor.register(SENSITIVE_ID, text)

    def mask(self, state: RunState, value: Json) -> Json:
        """Return the value without sensitive text; the same object when it has none."""
        if self._redactor is None or state.graph.masking == "passthrough":
            return value
        return self._redactor.json(value)

    def mask_payload(self, state: RunState, payload: JsonObject) -> JsonObject:
        """Return a payload without sensitive text. Ids, times and names of the host stay."""
        if self._redactor is None:
            return payload
        return {
            name: value if _is_host_member(name) else self.mask(state, value)
            for name, value in payload.items()
        }

    def stream(self) -> StreamRedactor | None:
        """Return a redactor for streamed text; None when nothing is sensitive."""
        return None if self._redactor is None else StreamRedactor(self._redactor)


def maskable_texts(value: Json) -> Iterator[str]:
    """Find the texts of a value that are long enough to be masked."""
    if isinstance(value, str):
        if len(value) >= MIN_SECRET:
            yield value
    elif isinstance(value, dict):
        for member in cast("JsonObject", value).values():
            yield from maskable_texts(member)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Json]", value):
            yield from maskable_texts(item)


def _is_host_member(name: str) -> bool:
    """Return whether a member of a payload comes from the host: ids, times and names."""
    return name.endswith(("Id", "At")) or name in _STRUCTURE


_DECISION_WORDS: Final = ("accept", "reject")
# Members of a response that may hold a word of the protocol, by the kind of the interrupt.
_WORDS: Final[Mapping[str, Mapping[str, tuple[Json, ...]]]] = {
    "approval": {
        "action": (*_DECISION_WORDS, "refine", "edit-accept", "ask"),
        # The response to a governance gate.
        "decision": ("granted", "rejected"),
    },
    "low-confidence": {"action": _DECISION_WORDS, "ratified": (True,), "rejected": (True,)},
    "conversation.exchange": {"operation": ("exchange", "close")},
}
# Members of events, besides the response itself, that repeat its text.
_RESPONSE_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "clarification.resolved": ("answers",),
    "approval.received": ("comment", "feedback", "refineFeedback", "editedArtifactData"),
    "interrupt.resolved": ("refineFeedback", "editedArtifactData"),
    "approval.rejected": ("reason",),
    "approval.overridden": ("reason",),
    "conversation.exchanged": ("turn",),
    "conversation.closed": ("finalTurn", "outcome"),
}


def hidden_part(kind: str, value: Json) -> Json:
    """Return the part of a response that the log does not show."""
    if not is_object(value):
        return value
    words = _words(kind, value)
    return {name: member for name, member in value.items() if name not in words}


def visible_response(kind: str, value: Json) -> Json:
    """Return a response as the log shows it. A replay reads its structure, which is kept."""
    if not is_object(value):
        return MASK
    words = _words(kind, value)
    # The response is itself a decision, and as sensitive as the decision of the agent.
    if kind == "low-confidence" and not words and "decision" not in value:
        return MASK
    return {
        name: member if name in words else _mask_member(name, member)
        for name, member in value.items()
    }


def full_response(visible: Json, masked: Json) -> Json:
    """Join the visible and the masked part of a response."""
    return {**visible, **masked} if is_object(visible) and is_object(masked) else masked


def mask_response_members(event_type: str, payload: JsonObject) -> JsonObject:
    """Mask the members of an event that repeat a response or the decision of a supervisor."""
    if event_type == "runOrchestrator.decided":
        return {"decision": _mask_supervisor_decision(payload["decision"])}
    names = _RESPONSE_MEMBERS.get(event_type, ())
    return {name: _mask_member(name, payload[name]) for name in names if name in payload}


def turn_content(turn: Json) -> Json:
    """Return the content of a turn of a conversation; None for any other value."""
    return turn.get("content") if is_object(turn) and "turnIndex" in turn else None


def mask_turn(turn: Json) -> Json:
    """Mask the content of a turn of a conversation. Any other value stays."""
    return turn if turn_content(turn) is None else {**turn, "content": MASK}


def _words(kind: str, value: JsonObject) -> set[str]:
    known = _WORDS.get(kind, {})
    return {name for name, member in value.items() if member in known.get(name, ())}


def _mask_member(name: str, member: Json) -> Json:
    """Return a mask of the type that the member must have."""
    match name:
        case "answers" if is_object(member):
            return dict.fromkeys(member, MASK)
        case "refineFeedback" if is_object(member):
            return {"scope": member["scope"]} | ({"text": MASK} if len(member) > 1 else {})
        case "turn" | "finalTurn":
            return mask_turn(member)
        case _:
            return MASK


def _mask_supervisor_decision(decision: JsonObject) -> JsonObject:
    """Show only the kind of the decision of a supervisor and the number of workers."""
    masked: JsonObject = {"kind": decision["kind"]}
    if "nextWorkerIds" in decision:
        masked["nextWorkerIds"] = [MASK] * len(decision["nextWorkerIds"])
    if "prompt" in decision:
        masked["prompt"] = MASK
    return masked


class SensitiveContents(msgspec.Struct, kw_only=True):
    """Sensitive values by the place that they belong to."""

    variables: JsonObject = {}
    outputs: dict[str, JsonObject] = {}
    channels: JsonObject = {}
    # The masked part of responses, by the key of the interrupt.
    answers: JsonObject = {}
    # The feedback of reviewers, by the node that has to run again.
    feedback: JsonObject = {}
    # The decisions of supervisors, by their number.
    decisions: JsonObject = {}
    # The sensitive texts of the parent run.
    inherited: list[str] = []

    def unmask(self, state: RunState) -> RunState:
        """Return the state with the true values; the same object when there are none."""
        if self == SensitiveContents(inherited=self.inherited):
            return state
        return replace(
            state,
            variables=state.variables | self.variables,
            channels=state.channels | self.channels,
            nodes=self._nodes(state),
            answers={
                key: full_response(visible, self.answers[key]) if key in self.answers else visible
                for key, visible in state.answers.items()
            },
            decisions=tuple(
                replace(taken, decision=self.decisions.get(str(number), taken.decision))
                for number, taken in enumerate(state.decisions)
            ),
        )

    def _nodes(self, state: RunState) -> dict[str, NodeState]:
        nodes = dict(state.nodes)
        for node_id, outputs in self.outputs.items():
            node = nodes[node_id]
            if node.outputs is not None:
                nodes[node_id] = replace(node, outputs=node.outputs | outputs)
        for node_id, feedback in self.feedback.items():
            if nodes[node_id].feedback is not None:
                nodes[node_id] = replace(nodes[node_id], feedback=feedback)
        return nodes


# Events with the decision of an agent. `interrupt.requested` has it in its data.
_DECISIONS: Final = frozenset({"agent.decided", "node.suspended"})
_CHANGED: Final = ("next", "previous")


class SensitiveValues:
    """The sensitive values of one run. Nodes read them. They are never on the log."""

    def __init__(self, contents: SensitiveContents | None = None) -> None:
        self._contents = contents or SensitiveContents()
        self._texts = SensitiveTexts()
        if contents is not None:
            self._texts.add(msgspec.structs.astuple(contents))

    def for_child(self) -> SensitiveValues:
        """Return the sensitive values that a child run begins with."""
        return SensitiveValues(
            SensitiveContents(
                inherited=sorted(set(maskable_texts(msgspec.structs.astuple(self._contents))))
            )
        )

    def stream(self) -> StreamRedactor | None:
        """Return a redactor for streamed text; None when nothing is sensitive."""
        return self._texts.stream()

    @property
    def is_empty(self) -> bool:
        """Return whether the run has no sensitive values."""
        return self._contents == SensitiveContents()

    @classmethod
    def decrypt(cls, sealed: bytes | None, seal: Seal, run_id: str) -> SensitiveValues:
        """Decrypt the values that are stored with the run."""
        if sealed is None:
            return cls()
        plain = seal.open(sealed, context=run_id.encode())
        return cls(msgspec.json.decode(plain, type=SensitiveContents))

    def encrypt(self, seal: Seal, run_id: str) -> bytes | None:
        """Encrypt the values for this run; None when there are none."""
        if self.is_empty:
            return None
        return seal.seal(
            msgspec.json.encode(self._contents),
            nonce=secrets.token_bytes(12),
            context=run_id.encode(),
        )

    def unmask(self, state: RunState) -> RunState:
        """Return the state with true values. Only nodes and expressions may read it."""
        return self._contents.unmask(state)

    def mask(
        self, state: RunState, event_type: str, node_id: str, payload: JsonObject, at: int
    ) -> JsonObject:
        """Store the sensitive members of a payload, and return the masked payload."""
        payload = self._mask_decision_event(state, event_type, node_id, payload)
        match event_type:
            case "run.started":
                return self._mask_inputs(state, payload)
            case "variable.changed":
                return self._mask_variable(state, payload)
            case "node.completed":
                return self._mask_outputs(state, node_id, payload, "outputs")
            case "node.suspended" if HELD_OUTPUTS in payload:
                return self._mask_outputs(state, node_id, payload, HELD_OUTPUTS)
            case "channel.written":
                return self._mask_channel_write(state, node_id, payload, at)
            case _:
                return self._mask_response_event(state, event_type, node_id, payload)

    def mask_decision(self, state: RunState, node_id: str, decision: Json) -> Json:
        """Return the decision of an agent as readers see it.

        It is masked where the outputs of the node are sensitive. Few decisions are possible, so
        even a hash would reveal it.
        """
        if _is_private(state, node_id):
            return MASK
        return self._texts.mask(state, decision)

    def _mask_decision_event(
        self, state: RunState, event_type: str, node_id: str, payload: JsonObject
    ) -> JsonObject:
        if event_type in _DECISIONS and "decision" in payload:
            return payload | {"decision": self.mask_decision(state, node_id, payload["decision"])}
        data: JsonObject = payload.get("data", {}) if event_type == "interrupt.requested" else {}
        if payload.get("kind") != "low-confidence" or "decision" not in data:
            return payload
        masked = self.mask_decision(state, node_id, data["decision"])
        return payload | {"data": data | {"decision": masked}}

    def _mask_response_event(
        self, state: RunState, event_type: str, node_id: str, payload: JsonObject
    ) -> JsonObject:
        """Mask responses to a node with sensitive outputs, and sensitive text in other events."""
        masked = self._texts.mask_payload(state, payload)
        if node_id and _is_private(state, node_id):
            masked = masked | mask_response_members(event_type, payload)
        match event_type:
            case "interrupt.resolved" | "node.resumed" if "resumeValue" in payload:
                return masked | {"resumeValue": self._mask_resume_value(state, node_id, payload)}
            case "approval.received" if payload["action"] == "refine":
                self._keep_feedback(state, node_id, payload, masked)
            case "runOrchestrator.decided" if masked["decision"] is not payload["decision"]:
                self._contents.decisions[str(len(state.decisions))] = payload["decision"]
            case _:
                pass
        return masked

    def mask_response(self, state: RunState, node_id: str, kind: str, value: Json) -> Json:
        """Return a response as readers see it; the same object if nothing in it is sensitive."""
        if _is_private(state, node_id):
            return visible_response(kind, value)
        return self._texts.mask(state, value)

    def _mask_resume_value(self, state: RunState, node_id: str, payload: JsonObject) -> Json:
        value: Json = payload["resumeValue"]
        interrupt = state.nodes[node_id].interrupt
        if interrupt is None:
            return self._texts.mask(state, value)
        masked = self.mask_response(state, node_id, interrupt.kind, value)
        if masked is not value:
            private = hidden_part(interrupt.kind, value)
            self._texts.add(private)
            self._contents.answers[interrupt.key] = private
        return masked

    def _keep_feedback(
        self, state: RunState, node_id: str, payload: JsonObject, masked: JsonObject
    ) -> None:
        """Store the feedback of a reviewer for the nodes that run again."""
        true, visible = payload["refineFeedback"], masked["refineFeedback"]
        for source in {edge.source_node_id for edge in state.graph.incoming[node_id]}:
            if state.nodes[source].status in ENDED:
                _store(self._contents.feedback, source, true, visible, is_marked=False)

    def _mask_inputs(self, state: RunState, payload: JsonObject) -> JsonObject:
        graph = state.graph
        names = graph.sensitive_variables
        if not names and not graph.sensitive_channels and self._texts.is_empty:
            return payload
        inputs: JsonObject = payload.get("inputs", {})
        given = default_variables(graph.definition) | inputs
        self._contents.variables |= {n: v for n, v in given.items() if n in names}
        self._contents.channels |= {
            n: v
            for n, v in default_channels(graph.definition).items()
            if n in graph.sensitive_channels
        }
        self._texts.add([self._contents.variables, self._contents.channels])
        masked = self._texts.mask(state, mask_members(inputs, names, graph.masking))
        self._contents.variables |= {n: v for n, v in inputs.items() if masked.get(n) is not v}
        return payload if masked is inputs else payload | {"inputs": masked}

    def _mask_variable(self, state: RunState, payload: JsonObject) -> JsonObject:
        name: str = payload["name"]
        is_marked = name in state.graph.sensitive_variables
        if is_marked:
            self._texts.add(payload.get("next"))
        masked = mask_members(payload, _CHANGED if is_marked else (), state.graph.masking)
        masked = masked | {n: self._texts.mask(state, masked[n]) for n in _CHANGED if n in masked}
        if "next" in payload:
            _store(self._contents.variables, name, payload["next"], masked.get("next"), is_marked)
        return masked

    def _mask_outputs(
        self, state: RunState, node_id: str, payload: JsonObject, member: str
    ) -> JsonObject:
        marked = state.graph.nodes[node_id].output_sensitivity
        if not marked and self._texts.is_empty:
            return payload
        names = {port for port, is_sensitive in marked.items() if is_sensitive}
        outputs: JsonObject = payload.get(member, {})
        self._texts.add([v for n, v in outputs.items() if n in names])
        masked = self._texts.mask(state, mask_members(outputs, names, state.graph.masking))
        kept = {n: v for n, v in outputs.items() if n in names or masked.get(n) is not v}
        # A node of a loop completes again: its earlier outputs are replaced.
        self._contents.outputs.pop(node_id, None)
        if kept:
            self._contents.outputs[node_id] = kept
        return payload if masked is outputs else payload | {member: masked}

    def true_outputs(self, node_id: str) -> JsonObject:
        """Return the true values of the sensitive outputs of a node."""
        return self._contents.outputs.get(node_id, {})

    def _mask_channel_write(
        self, state: RunState, node_id: str, payload: JsonObject, at: int
    ) -> JsonObject:
        name: str = payload["channel"]
        is_marked = name in state.graph.sensitive_channels
        if is_marked:
            self._texts.add(payload["value"])
        masked = mask_members(payload, {"value"} if is_marked else (), state.graph.masking)
        # The schema requires a value, so `omit` leaves null.
        value = self._texts.mask(state, masked.get("value"))
        if payload["reducer"] == "message" and _is_private(state, node_id):
            self._texts.add(turn_content(payload["value"]))
            value = {**value, "content": MASK} if is_context_channel(name) else mask_turn(value)
        if is_marked or name in self._contents.channels or value is not payload["value"]:
            self._fold_write(state, payload, at)
        return payload if value is payload["value"] else masked | {"value": value}

    def _fold_write(self, state: RunState, payload: JsonObject, at: int) -> None:
        name: str = payload["channel"]
        ttl_ms, max_size = channel_limits(state, name, payload.get("nodeId"))
        current: Json = self._contents.channels.get(name, state.channels.get(name, UNSET))
        self._contents.channels[name] = reduce(
            current,
            payload["value"],
            reducer=payload["reducer"],
            at=at,
            ttl_ms=ttl_ms,
            max_size=max_size,
        )


def has_sensitive_values(graph: Graph) -> bool:
    """Return whether a workflow marks variables, channels or outputs as sensitive."""
    has_marked_outputs = any(any(n.output_sensitivity.values()) for n in graph.nodes.values())
    return bool(graph.sensitive_variables or graph.sensitive_channels) or has_marked_outputs


def _store(stored: JsonObject, name: str, true: Json, masked: Json, is_marked: bool) -> None:
    """Store a true value that is masked, else delete the stored value."""
    if is_marked or masked is not true:
        stored[name] = true
    else:
        stored.pop(name, None)


def _is_private(state: RunState, node_id: str) -> bool:
    """Return whether outputs of a node are masked. Responses and decisions are then masked too."""
    is_marked = any(state.graph.nodes[node_id].output_sensitivity.values())
    return is_marked and state.graph.masking != "passthrough"
