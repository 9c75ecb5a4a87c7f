"""True values of what the log holds only masked: kept in memory, and sealed beside the run."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from wopr.engine.channels import reduce
from wopr.engine.contexts import is_context
from wopr.engine.fold import channel_limits
from wopr.engine.graph import default_channels, default_variables
from wopr.engine.interrupts import HELD_OUTPUTS
from wopr.engine.state import ENDED, RunState
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.runtime.contents import Contents
from wopr.runtime.hidden import HiddenTexts, texts
from wopr.runtime.private_answers import (
    private_part,
    said_in,
    shown_answer,
    shown_members,
    shown_turn,
)
from wopr.security.masking import mask_members
from wopr.security.redact import StreamRedactor
from wopr.security.seal import Seal
from wopr.security.shapes import MASK

# Events that tell what an agent decided; a wait that is asked for tells it in its data.
_DECISIONS: Final = frozenset({"agent.decided", "node.suspended"})
_CHANGED: Final = ("next", "previous")


class Vault:
    """One run's sensitive values. Nodes read through it; the log never sees them.

    What is hidden in one place is hidden in all: text of a sensitive value that a node copies
    elsewhere, or complains about, is masked there as well.
    """

    def __init__(self, contents: Contents | None = None) -> None:
        self._contents = contents or Contents()
        self._hidden = HiddenTexts()
        if contents is not None:
            self._hidden.hide(msgspec.structs.astuple(contents))

    def handed_down(self) -> Vault:
        """The vault that a child run begins with."""
        return Vault(
            Contents(inherited=sorted(set(texts(msgspec.structs.astuple(self._contents)))))
        )

    def stream(self) -> StreamRedactor | None:
        """What takes hidden text out of a stream; None when nothing is hidden."""
        return self._hidden.stream()

    @property
    def is_empty(self) -> bool:
        """Whether the run has no sensitive values."""
        return self._contents == Contents()

    @classmethod
    def unseal(cls, sealed: bytes | None, seal: Seal, run_id: str) -> Vault:
        """Open what was stored beside the run."""
        if sealed is None:
            return cls()
        plain = seal.open(sealed, context=run_id.encode())
        return cls(msgspec.json.decode(plain, type=Contents))

    def sealed(self, seal: Seal, run_id: str) -> bytes | None:
        """The contents, encrypted for this run; None when there are none."""
        if self.is_empty:
            return None
        return seal.seal(
            msgspec.json.encode(self._contents),
            nonce=secrets.token_bytes(12),
            context=run_id.encode(),
        )

    def reveal(self, state: RunState) -> RunState:
        """The state with true values, for nodes and expressions; never for a reader."""
        return self._contents.revealed(state)

    def conceal(
        self, state: RunState, event_type: str, node_id: str, payload: JsonObject, at: int
    ) -> JsonObject:
        """Keep the sensitive members of a payload and return the masked payload."""
        payload = self._conceal_decision(state, event_type, node_id, payload)
        match event_type:
            case "run.started":
                return self._conceal_inputs(state, payload)
            case "variable.changed":
                return self._conceal_variable(state, payload)
            case "node.completed":
                return self._conceal_outputs(state, node_id, payload, "outputs")
            case "node.suspended" if HELD_OUTPUTS in payload:
                return self._conceal_outputs(state, node_id, payload, HELD_OUTPUTS)
            case "channel.written":
                return self._conceal_write(state, node_id, payload, at)
            case _:
                return self._conceal_said(state, event_type, node_id, payload)

    def shown_decision(self, state: RunState, node_id: str, decision: Json) -> Json:
        """What a reader gets of an agent's decision.

        Where the node's outputs are sensitive the decision is, too. There are few that it could
        be, so that even a hash would tell.
        """
        if _is_private(state, node_id):
            return MASK
        return self._hidden.clean(state, decision)

    def _conceal_decision(
        self, state: RunState, event_type: str, node_id: str, payload: JsonObject
    ) -> JsonObject:
        if event_type in _DECISIONS and "decision" in payload:
            return payload | {"decision": self.shown_decision(state, node_id, payload["decision"])}
        data: JsonObject = payload.get("data", {}) if event_type == "interrupt.requested" else {}
        if payload.get("kind") != "low-confidence" or "decision" not in data:
            return payload
        shown = self.shown_decision(state, node_id, data["decision"])
        return payload | {"data": data | {"decision": shown}}

    def _conceal_said(
        self, state: RunState, event_type: str, node_id: str, payload: JsonObject
    ) -> JsonObject:
        """Mask what is said to a node whose outputs are sensitive, and hidden text in all else."""
        shown = self._hidden.clean_members(state, payload)
        if node_id and _is_private(state, node_id):
            shown = shown | shown_members(event_type, payload)
        match event_type:
            case "interrupt.resolved" | "node.resumed" if "resumeValue" in payload:
                return shown | {"resumeValue": self._conceal_answer(state, node_id, payload)}
            case "approval.received" if payload["action"] == "refine":
                self._keep_feedback(state, node_id, payload, shown)
            case "runOrchestrator.decided" if shown["decision"] is not payload["decision"]:
                self._contents.decisions[str(len(state.decisions))] = payload["decision"]
            case _:
                pass
        return shown

    def shown_answer(self, state: RunState, node_id: str, kind: str, value: Json) -> Json:
        """What a reader gets of an answer to a wait of this kind; the very same if it hides nothing."""
        if _is_private(state, node_id):
            return shown_answer(kind, value)
        return self._hidden.clean(state, value)

    def _conceal_answer(self, state: RunState, node_id: str, payload: JsonObject) -> Json:
        value: Json = payload["resumeValue"]
        interrupt = state.nodes[node_id].interrupt
        if interrupt is None:
            return self._hidden.clean(state, value)
        shown = self.shown_answer(state, node_id, interrupt.kind, value)
        if shown is not value:
            private = private_part(interrupt.kind, value)
            self._hidden.hide(private)
            self._contents.answers[interrupt.key] = private
        return shown

    def _keep_feedback(
        self, state: RunState, node_id: str, payload: JsonObject, shown: JsonObject
    ) -> None:
        """Keep what a reviewer says for those who do their work again, as the fold hands it on."""
        true, told = payload["refineFeedback"], shown["refineFeedback"]
        for source in {edge.source_node_id for edge in state.graph.incoming[node_id]}:
            if state.nodes[source].status in ENDED:
                _keep(self._contents.feedback, source, true, told, is_marked=False)

    def _conceal_inputs(self, state: RunState, payload: JsonObject) -> JsonObject:
        graph = state.graph
        names = graph.sensitive_variables
        if not names and not graph.sensitive_channels and self._hidden.are_none:
            return payload
        inputs: JsonObject = payload.get("inputs", {})
        given = default_variables(graph.definition) | inputs
        self._contents.variables |= {n: v for n, v in given.items() if n in names}
        self._contents.channels |= {
            n: v
            for n, v in default_channels(graph.definition).items()
            if n in graph.sensitive_channels
        }
        self._hidden.hide([self._contents.variables, self._contents.channels])
        shown = self._hidden.clean(state, mask_members(inputs, names, graph.masking))
        self._contents.variables |= {n: v for n, v in inputs.items() if shown.get(n) is not v}
        return payload if shown is inputs else payload | {"inputs": shown}

    def _conceal_variable(self, state: RunState, payload: JsonObject) -> JsonObject:
        name: str = payload["name"]
        is_marked = name in state.graph.sensitive_variables
        if is_marked:
            self._hidden.hide(payload.get("next"))
        shown = mask_members(payload, _CHANGED if is_marked else (), state.graph.masking)
        shown = shown | {n: self._hidden.clean(state, shown[n]) for n in _CHANGED if n in shown}
        if "next" in payload:
            _keep(self._contents.variables, name, payload["next"], shown.get("next"), is_marked)
        return shown

    def _conceal_outputs(
        self, state: RunState, node_id: str, payload: JsonObject, member: str
    ) -> JsonObject:
        marked = state.graph.nodes[node_id].output_sensitivity
        if not marked and self._hidden.are_none:
            return payload
        names = {port for port, is_sensitive in marked.items() if is_sensitive}
        outputs: JsonObject = payload.get(member, {})
        self._hidden.hide([v for n, v in outputs.items() if n in names])
        shown = self._hidden.clean(state, mask_members(outputs, names, state.graph.masking))
        kept = {n: v for n, v in outputs.items() if n in names or shown.get(n) is not v}
        # A node of a loop completes again: what it returned before is over.
        self._contents.outputs.pop(node_id, None)
        if kept:
            self._contents.outputs[node_id] = kept
        return payload if shown is outputs else payload | {member: shown}

    def true_outputs(self, node_id: str) -> JsonObject:
        """The sensitive outputs of a node as they were."""
        return self._contents.outputs.get(node_id, {})

    def _conceal_write(
        self, state: RunState, node_id: str, payload: JsonObject, at: int
    ) -> JsonObject:
        name: str = payload["channel"]
        is_marked = name in state.graph.sensitive_channels
        if is_marked:
            self._hidden.hide(payload["value"])
        shown = mask_members(payload, {"value"} if is_marked else (), state.graph.masking)
        # The schema requires a value, so `omit` leaves the plainest mask there is.
        value = self._hidden.clean(state, shown.get("value"))
        if payload["reducer"] == "message" and _is_private(state, node_id):
            self._hidden.hide(said_in(payload["value"]))
            value = {**value, "content": MASK} if is_context(name) else shown_turn(value)
        if is_marked or name in self._contents.channels or value is not payload["value"]:
            self._fold_write(state, payload, at)
        return payload if value is payload["value"] else shown | {"value": value}

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


def _keep(kept: JsonObject, name: str, true: Json, shown: Json, is_marked: bool) -> None:
    """Keep a true value that is not shown; forget an older one when it is."""
    if is_marked or shown is not true:
        kept[name] = true
    else:
        kept.pop(name, None)


def _is_private(state: RunState, node_id: str) -> bool:
    """Whether outputs of a node are hidden: what leads to them is, too."""
    is_marked = any(state.graph.nodes[node_id].output_sensitivity.values())
    return is_marked and state.graph.masking != "passthrough"
