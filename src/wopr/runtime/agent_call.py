"""The agent's side of a node's call: reasoning, tools, confidence, answers and memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wopr.agents.registry import Agents, Installed
from wopr.engine.escalation import Verbosity, bounded, is_low, threshold, verbosity
from wopr.engine.fold_agents import DISPATCH
from wopr.engine.outcome import Suspended
from wopr.engine.state import RunState
from wopr.nodes.context import RATIFICATION, ChildView, ConfidenceFloor, NodeMemory, ToolUse
from wopr.nodes.llm_context import LlmContext
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.errors import WoprError
from wopr.runtime.active import ActiveRun
from wopr.runtime.appender import Burst, as_json
from wopr.runtime.call import NodeCall
from wopr.runtime.llm_call import LlmServices, RunLlm, cut
from wopr.runtime.node_memory import RunMemory
from wopr.runtime.registration import CONFORMANCE_PREFIX
from wopr.runtime.suspending import low_confidence
from wopr.runtime.tool_calls import ToolCalls, ToolPolicy
from wopr.security.digest import json_digest

if TYPE_CHECKING:
    from wopr.runtime.advance import Advancer

# How much of a decision's digest is in the key of its wait.
_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """What nodes that speak for agents need from the host."""

    agents: Agents
    floor: ConfidenceFloor
    tools: ToolPolicy
    verbosity: Verbosity = "summary"
    token_limit: int = 512
    streams_reasoning: bool = True
    llm: LlmServices = field(default_factory=LlmServices)
    # The operator's choice to let unsure decisions pass, on the record.
    suppresses_escalation: bool = False

    def threshold(
        self,
        tenant: str,
        agent_id: str,
        configurable: JsonObject,
        version: str | None = None,
        at: int | None = None,
    ) -> float:
        """How sure an agent must be: the run's option, its manifest then, or the default."""
        return threshold(configurable, self.agents.threshold(tenant, agent_id, version, at))


def _last_dispatch(state: RunState) -> JsonObject | None:
    """The outputs of the dispatch node that completed last."""
    done = [
        (node.ended_at, node.outputs)
        for node_id, node in state.nodes.items()
        if node.outputs is not None and state.graph.nodes[node_id].type_id == DISPATCH
    ]
    return max(done, key=lambda each: each[0])[1] if done else None


class AgentCall(NodeCall):
    """A node's call with everything that agents may do."""

    def __init__(
        self,
        advancer: Advancer,
        run: ActiveRun,
        node_id: str,
        state: RunState,
        *,
        now: int,
        children: tuple[ChildView, ...] = (),
    ) -> None:
        super().__init__(advancer, run, node_id, state, now=now, children=children)
        self._services = advancer.services
        pinned = state.graph.nodes[node_id].agent
        self.agent = None if isinstance(pinned, Unset) else pinned
        orchestrator = state.run_orchestrator
        self.run_orchestrator = None if orchestrator is None else orchestrator.agent_id
        self.last_worker = state.last_worker or None
        self.decisions = tuple((d.event_id, d.decision) for d in self.state.decisions)
        self.last_dispatch = _last_dispatch(self.state)
        self.chain = self._node.chain
        self.feedback = self._node.feedback
        self.floor = self._services.floor
        self.is_conformance = self.workflow_id.startswith(CONFORMANCE_PREFIX)
        self.verbosity: str = verbosity(state.configurable, self._services.verbosity)
        self.memory: NodeMemory = RunMemory(advancer.memory, self)
        self.tool_calls = ToolCalls(self, self._services.tools)
        self.llm: LlmContext = RunLlm(self, run, self._services)

    def interrupt_key(self, purpose: str = "") -> str:
        """The key of this node's wait in this visit; no run id, so that a replay asks alike."""
        suffix = f":{purpose}" if purpose else ""
        return f"{self.node_id}:{self.visit}{suffix}"

    def answer(self, key: str) -> Json:
        """The recorded answer to the wait with this key."""
        return self.state.answers.get(key, UNSET)

    def _version(self, agent_id: str) -> str | None:
        """The version of an agent that this node is pinned to."""
        pinned = self.agent
        if pinned is None or pinned.agent_id != agent_id or isinstance(pinned.version, Unset):
            return None
        return pinned.version

    def installed(self, agent_id: str) -> Installed | None:
        """An agent's manifest as it was when the run started."""
        version, at = self._version(agent_id), self.state.started_at
        return self._services.agents.find(self.tenant, agent_id, version, at)

    def tools(self, agent_id: str) -> frozenset[str] | None:
        """The tools that the agent may call; None when it has no manifest."""
        version, at = self._version(agent_id), self.state.started_at
        return self._services.agents.allowlist(self.tenant, agent_id, version, at)

    def threshold(self, agent_id: str) -> float:
        """How sure this agent must be: the run's option, its manifest, or the default."""
        state = self.state
        return self._services.threshold(
            self.tenant, agent_id, state.configurable, self._version(agent_id), state.started_at
        )

    def ratification_key(self, decision: Json) -> str:
        """The key of the wait for a person's word on this decision, and on no other."""
        shown = self._run.vault.shown_decision(self.state, self.node_id, as_json(decision))
        return self._ratification_key(self.redactor.json(shown))

    def _ratification_key(self, shown: Json) -> str:
        """A key by what the log shows of a decision: nobody can have agreed to more."""
        digest = json_digest(shown).hex()[:_DIGITS]
        return self.interrupt_key(f"{RATIFICATION}-{digest}")

    def low_confidence(
        self, agent_id: str, confidence: float, decision: Json, key: str
    ) -> Suspended | None:
        """The wait for a person to ratify a decision, when the agent is not sure enough."""
        needed = self.threshold(agent_id)
        if self._services.suppresses_escalation or not is_low(confidence, needed):
            return None
        return low_confidence(agent_id, needed, confidence, decision, key)

    def doubt(self, burst: Burst) -> Suspended | None:
        """What the decisions of this execution lead to when an agent was not sure enough.

        The one place where that is decided: whatever a node does with its own decision, an
        unsure one waits for a person, or is recorded as let through. The decisions are read from
        the log, so that neither a flush, a sleep nor a restart lets one slip by.
        """
        for decided in burst.state.nodes[self.node_id].decided:
            agent_id: str = decided["agentId"]
            needed, observed = self.threshold(agent_id), decided["confidence"]
            key = self._ratification_key(decided["decision"])
            if not is_low(observed, needed) or not isinstance(self.answer(key), Unset):
                continue
            if not self._services.suppresses_escalation:
                return low_confidence(agent_id, needed, observed, decided["decision"], key)
            kind = "confidence-escalation-suppressed"
            payload = {"kind": kind, "limit": needed, "observed": observed, "nodeId": self.node_id}
            burst.add("cap.breached", payload, node_id=self.node_id)
        return None

    def reason(
        self, agent_id: str, text: str, *, deltas: Sequence[str] = (), **extra: Json
    ) -> None:
        """Put an agent's reasoning on the log, as much of it as the run's verbosity allows."""
        if self.verbosity == "off":
            return
        said = "".join(deltas) or text
        shown = self.redactor.text(said)
        # A secret may straddle two deltas, so a text that holds one goes out in a single piece.
        pieces = list(deltas) if shown == said else [shown] if deltas else []
        if self._services.streams_reasoning:
            for sequence, piece in enumerate(pieces):
                delta: JsonObject = {"agentId": agent_id, "delta": piece, "sequence": sequence}
                self.emit("agent.reasoning.delta", delta | {"verbosity": self.verbosity})
        if self.verbosity == "summary":
            shown = bounded(shown, self._services.token_limit)
        payload: JsonObject = {"agentId": agent_id, "reasoning": shown, **extra}
        self.emit("agent.reasoned", payload | {"verbosity": self.verbosity})

    def record(self, event_type: str, payload: JsonObject, causation_id: str = "") -> str:
        """Put an event of the host's own on the log, where it advertises events of that type."""
        event_id = self._advancer.journal.new_id()
        payload = self.json_of(payload)
        cause = causation_id or self.started_event

        def draft(burst: Burst) -> None:
            if burst.guard.advertises(event_type):
                burst.add(
                    event_type, payload, node_id=self.node_id, causation_id=cause, event_id=event_id
                )

        self._drafts.append(draft)
        return event_id

    def advertises(self, event_type: str) -> bool:
        """Whether this host may put events of this type on a log."""
        return self._advancer.journal.guard.advertises(event_type)

    def open_call(self, call_id: str) -> str | None:
        """The event of a tool call that is on the log without its return."""
        return self._node.open_calls.get(call_id)

    def has_returned(self, place: int) -> bool:
        """Whether this visit's tool call of that number is on the log with its return."""
        return place < self._run.state.nodes[self.node_id].tool_returns

    def clock(self) -> int:
        """What time it is now, in milliseconds since the epoch."""
        return self._advancer.journal.now()

    def record_tool_call(
        self, agent_id: str, tool_name: str, arguments: Json, returned: JsonObject
    ) -> bool:
        """Put a tool call and its return on the log; False when the call was not allowed."""
        return self.tool_calls.record(agent_id, tool_name, arguments, returned)

    def announce_tool_call(
        self, agent_id: str, tool_name: str, call_id: str, arguments: Json
    ) -> None:
        """Put a call on the log that a framework makes, unless it is there without its return."""
        use = ToolUse(
            tool_name=tool_name, arguments=arguments, transport="native", agent_id=agent_id
        )
        self.tool_calls.announce(use, call_id, shows=not self.llm.is_private)

    def record_tool_return(
        self, agent_id: str, tool_name: str, call_id: str, returned: JsonObject
    ) -> None:
        """Put what came of such a call on the log: `outcome` or `error: {code, message}`."""
        base: JsonObject = {"agentId": agent_id, "toolName": tool_name, "callId": call_id}
        outcome = {"outcome": cut(returned["outcome"])} if "outcome" in returned else {}
        self.tool_calls.close(base, returned | outcome, shows=not self.llm.is_private)

    async def call_tool(
        self, use: ToolUse, effect: Callable[[], Awaitable[Json]], shown: Callable[[Json], Json]
    ) -> Json:
        """Call a tool if it may be called, with the call and its return on the log."""
        return await self.tool_calls.make(use, effect, shown)

    async def entry_agent(self, workflow_id: str) -> str | None:
        """The agent that a workflow's first node is pinned to."""
        try:
            compiled = await self._advancer.journal.library.newest(self.tenant, workflow_id)
        except WoprError:
            return None
        graph = compiled.graph
        for node in graph.nodes.values():
            if not graph.incoming[node.id] and not isinstance(node.agent, Unset):
                return node.agent.agent_id
        return None
