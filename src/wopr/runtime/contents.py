"""What a vault holds: sensitive values by where they belong, and a run's state with them in place."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from wopr.engine.state import NodeState, RunState
from wopr.protocol.documents import JsonObject
from wopr.runtime.private_answers import true_answer


class Contents(msgspec.Struct, kw_only=True):
    """Sensitive values by where they belong."""

    variables: JsonObject = {}
    outputs: dict[str, JsonObject] = {}
    channels: JsonObject = {}
    # What people answered, by the key of the wait: the part that the log does not show.
    answers: JsonObject = {}
    # What reviewers sent back, by the node that has to do its work again.
    feedback: JsonObject = {}
    # What supervisors decided, by the decision's number.
    decisions: JsonObject = {}
    # What the parent of the run hides, and may have handed down.
    inherited: list[str] = []

    def revealed(self, state: RunState) -> RunState:
        """The state with what is held here; the very same one when that is nothing of its own."""
        if self == Contents(inherited=self.inherited):
            return state
        return replace(
            state,
            variables=state.variables | self.variables,
            channels=state.channels | self.channels,
            nodes=self._nodes(state),
            answers={
                key: true_answer(shown, self.answers[key]) if key in self.answers else shown
                for key, shown in state.answers.items()
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
