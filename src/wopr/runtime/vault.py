"""True values of what the log holds only masked: kept in memory, and sealed beside the run."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from wopr.engine.channels import reduce
from wopr.engine.fold import channel_limits
from wopr.engine.graph import default_channels, default_variables
from wopr.engine.interrupts import HELD_OUTPUTS
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.security.masking import mask_members
from wopr.security.redact import MIN_SECRET, Redactor, StreamRedactor
from wopr.security.seal import Seal
from wopr.security.shapes import MASK

HIDDEN_ID: Final = "sensitive"
# Events that tell what an agent decided; a wait that is asked for tells it in its data.
_DECISIONS: Final = frozenset({"agent.decided", "node.suspended"})
_CHANGED: Final = ("next", "previous")
_STRUCTURE: Final = frozenset({"kind", "key", "name", "status", "phase", "drainPolicy"})


class Contents(msgspec.Struct, kw_only=True):
    """Sensitive values by where they belong."""

    variables: JsonObject = {}
    outputs: dict[str, JsonObject] = {}
    channels: JsonObject = {}
    # What the parent of the run hides, and may have handed down.
    inherited: list[str] = []


class Vault:
    """One run's sensitive values. Nodes read through it; the log never sees them.

    What is hidden in one place is hidden in all: text of a sensitive value that a node copies
    elsewhere, or complains about, is masked there as well.
    """

    def __init__(self, contents: Contents | None = None) -> None:
        self._contents = contents or Contents()
        self._redactor: Redactor | None = None
        if contents is not None:
            self._hide(msgspec.structs.astuple(contents))

    def handed_down(self) -> Vault:
        """The vault that a child run begins with."""
        return Vault(
            Contents(inherited=sorted(set(_texts(msgspec.structs.astuple(self._contents)))))
        )

    def _hide(self, value: Json) -> None:
        for text in _texts(value):
            if self._redactor is None:
                self._redactor = Redactor()
            self._redactor.register(HIDDEN_ID, text)

    def _clean(self, state: RunState, value: Json) -> Json:
        """The value without hidden text; the very same one when it has none."""
        if self._redactor is None or state.graph.masking == "passthrough":
            return value
        return self._redactor.json(value)

    def stream(self) -> StreamRedactor | None:
        """What takes hidden text out of a stream; None when nothing is hidden."""
        return None if self._redactor is None else StreamRedactor(self._redactor)

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
        contents = self._contents
        if not (contents.variables or contents.outputs or contents.channels):
            return state
        nodes = dict(state.nodes)
        for node_id, outputs in contents.outputs.items():
            node = nodes[node_id]
            if node.outputs is not None:
                nodes[node_id] = replace(node, outputs=node.outputs | outputs)
        return replace(
            state,
            variables=state.variables | contents.variables,
            channels=state.channels | contents.channels,
            nodes=nodes,
        )

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
                return self._conceal_write(state, payload, at)
            case _ if self._redactor is None:
                return payload
            case _:
                return {
                    name: value if _is_structure(name) else self._clean(state, value)
                    for name, value in payload.items()
                }

    def shown_decision(self, state: RunState, node_id: str, decision: Json) -> Json:
        """What a reader gets of an agent's decision.

        Where the node's outputs are sensitive the decision is, too. There are few that it could
        be, so that even a hash would tell.
        """
        is_marked = any(state.graph.nodes[node_id].output_sensitivity.values())
        if is_marked and state.graph.masking != "passthrough":
            return MASK
        return self._clean(state, decision)

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

    def _conceal_inputs(self, state: RunState, payload: JsonObject) -> JsonObject:
        graph = state.graph
        names = graph.sensitive_variables
        if not names and not graph.sensitive_channels and self._redactor is None:
            return payload
        inputs: JsonObject = payload.get("inputs", {})
        given = default_variables(graph.definition) | inputs
        self._contents.variables |= {n: v for n, v in given.items() if n in names}
        self._contents.channels |= {
            n: v
            for n, v in default_channels(graph.definition).items()
            if n in graph.sensitive_channels
        }
        self._hide([self._contents.variables, self._contents.channels])
        shown = self._clean(state, mask_members(inputs, names, graph.masking))
        self._contents.variables |= {n: v for n, v in inputs.items() if shown.get(n) is not v}
        return payload if shown is inputs else payload | {"inputs": shown}

    def _conceal_variable(self, state: RunState, payload: JsonObject) -> JsonObject:
        name: str = payload["name"]
        is_marked = name in state.graph.sensitive_variables
        if is_marked:
            self._hide(payload.get("next"))
        shown = mask_members(payload, _CHANGED if is_marked else (), state.graph.masking)
        shown = shown | {n: self._clean(state, shown[n]) for n in _CHANGED if n in shown}
        if "next" in payload:
            _keep(self._contents.variables, name, payload["next"], shown.get("next"), is_marked)
        return shown

    def _conceal_outputs(
        self, state: RunState, node_id: str, payload: JsonObject, member: str
    ) -> JsonObject:
        marked = state.graph.nodes[node_id].output_sensitivity
        if not marked and self._redactor is None:
            return payload
        names = {port for port, is_sensitive in marked.items() if is_sensitive}
        outputs: JsonObject = payload.get(member, {})
        self._hide([v for n, v in outputs.items() if n in names])
        shown = self._clean(state, mask_members(outputs, names, state.graph.masking))
        kept = {n: v for n, v in outputs.items() if n in names or shown.get(n) is not v}
        # A node of a loop completes again: what it returned before is over.
        self._contents.outputs.pop(node_id, None)
        if kept:
            self._contents.outputs[node_id] = kept
        return payload if shown is outputs else payload | {member: shown}

    def true_outputs(self, node_id: str) -> JsonObject:
        """The sensitive outputs of a node as they were."""
        return self._contents.outputs.get(node_id, {})

    def _conceal_write(self, state: RunState, payload: JsonObject, at: int) -> JsonObject:
        name: str = payload["channel"]
        is_marked = name in state.graph.sensitive_channels
        if is_marked:
            self._hide(payload["value"])
        shown = mask_members(payload, {"value"} if is_marked else (), state.graph.masking)
        # The schema requires a value, so `omit` leaves the plainest mask there is.
        value = self._clean(state, shown.get("value"))
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


def _texts(value: Json) -> Iterator[str]:
    """Every text in a value that is long enough to be known again."""
    if isinstance(value, str):
        if len(value) >= MIN_SECRET:
            yield value
    elif isinstance(value, dict):
        for member in cast("JsonObject", value).values():
            yield from _texts(member)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Json]", value):
            yield from _texts(item)


def _is_structure(name: str) -> bool:
    """Whether a member of a payload is the host's own: ids, times and names of things."""
    return name.endswith(("Id", "At")) or name in _STRUCTURE
