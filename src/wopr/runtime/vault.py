"""True values of what the log holds only masked: kept in memory, and sealed beside the run."""

from __future__ import annotations

import secrets

import msgspec
from msgspec.structs import replace

from wopr.engine.channels import reduce
from wopr.engine.fold import channel_limits
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.security.masking import mask_members
from wopr.security.seal import Seal


class Contents(msgspec.Struct, kw_only=True):
    """Sensitive values by where they belong."""

    variables: JsonObject = {}
    outputs: dict[str, JsonObject] = {}
    channels: JsonObject = {}


class Vault:
    """One run's sensitive values. Nodes read through it; the log never sees them."""

    def __init__(self, contents: Contents | None = None) -> None:
        self._contents = contents or Contents()

    @classmethod
    def unseal(cls, sealed: bytes | None, seal: Seal, run_id: str) -> Vault:
        """Open what was stored beside the run."""
        if sealed is None:
            return cls()
        plain = seal.open(sealed, context=run_id.encode())
        return cls(msgspec.json.decode(plain, type=Contents))

    def sealed(self, seal: Seal, run_id: str) -> bytes | None:
        """The contents, encrypted for this run; None when there are none."""
        contents = self._contents
        if not (contents.variables or contents.outputs or contents.channels):
            return None
        return seal.seal(
            msgspec.json.encode(contents), nonce=secrets.token_bytes(12), context=run_id.encode()
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
        match event_type:
            case "run.started":
                return self._conceal_inputs(state, payload)
            case "variable.changed" if payload.get("name") in state.graph.sensitive_variables:
                return self._conceal_variable(state, payload)
            case "node.completed":
                return self._conceal_outputs(state, node_id, payload)
            case "channel.written" if payload.get("channel") in state.graph.sensitive_channels:
                return self._conceal_write(state, payload, at)
            case _:
                return payload

    def _conceal_inputs(self, state: RunState, payload: JsonObject) -> JsonObject:
        names = state.graph.sensitive_variables
        inputs: JsonObject = payload.get("inputs", {})
        for variable in state.graph.definition.variables:
            if variable.sensitive and variable.default_value is not UNSET:
                self._contents.variables[variable.name] = variable.default_value
        self._contents.variables |= {n: v for n, v in inputs.items() if n in names}
        if not inputs:
            return payload
        return payload | {"inputs": mask_members(inputs, names, state.graph.masking)}

    def _conceal_variable(self, state: RunState, payload: JsonObject) -> JsonObject:
        if "next" in payload:
            self._contents.variables[payload["name"]] = payload["next"]
        return mask_members(payload, {"next", "previous"}, state.graph.masking)

    def _conceal_outputs(self, state: RunState, node_id: str, payload: JsonObject) -> JsonObject:
        marked = state.graph.nodes[node_id].output_sensitivity
        names = {port for port, is_sensitive in marked.items() if is_sensitive}
        outputs: JsonObject = payload.get("outputs", {})
        kept = {n: v for n, v in outputs.items() if n in names}
        if not kept:
            return payload
        self._contents.outputs[node_id] = kept
        return payload | {"outputs": mask_members(outputs, names, state.graph.masking)}

    def _conceal_write(self, state: RunState, payload: JsonObject, at: int) -> JsonObject:
        name = payload["channel"]
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
        masked = mask_members(payload, {"value"}, state.graph.masking)
        # The schema requires a value, so `omit` leaves the plainest mask there is.
        return masked if "value" in masked else masked | {"value": None}
