"""How an agent's run ended, judged from the run's log when the run is over (14.5).

Finishing a node is only an exit code: without a decision or a passed verification there is no
convergence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wopr.fleet.bridge_agent import Agent, Page
from wopr.fleet.events import AgentOutcome
from wopr.fleet.instants import seconds_between
from wopr.fleet.lifecycle import BLOCKED
from wopr.protocol.documents import JsonObject

TERMINAL_TYPES: Final = frozenset(
    {"run.completed", "run.failed", "run.cancelled", "run.dead_lettered"}
)
_FAILURES: Final = frozenset({"run.failed", "run.dead_lettered"})
# Less than full convergence, however little is missing.
_MOST_PARTIAL: Final = 0.99


@dataclass(frozen=True, slots=True)
class Ending:
    """The event that ended a run: its type, why it failed, and whose node did."""

    type: str
    code: str | None = None
    failed_agent: Agent | None = None

    @property
    def reason(self) -> str:
        """Why an agent was stopped by it."""
        is_told = self.type == "run.failed" and self.code is not None
        return f"{self.type}:{self.code}" if is_told else self.type


def end(page: Page, agent: Agent, ending: Ending) -> None:
    """Write an agent's last lines: calls that never returned, the last status, the end."""
    outcome = outcome_of(agent, ending)
    agent.abandon_calls(page)
    if outcome == "converged":
        agent.go(page, "converged", ending.type)
    elif outcome == "aborted":
        agent.hop(page, "failed", ending.reason)
    fields: JsonObject = {
        "agent_id": agent.agent_id,
        "outcome": outcome,
        "total_steps": agent.step + 1,
        "total_tool_calls": agent.tool_calls,
        "total_audit_checkpoints": sum(agent.audits.values()),
        "audits_passed": agent.audits["pass"],
        "audits_failed": agent.audits["fail"],
        "total_duration_s": seconds_between(agent.started, page.ts),
    }
    score = score_of(agent, outcome)
    page.write("agent_run_end", fields | ({} if score is None else {"convergence_score": score}))


def outcome_of(agent: Agent, ending: Ending) -> AgentOutcome:
    """Judge an agent; the first rule that holds decides."""
    if _is_aborted(agent, ending):
        return "aborted"
    if agent.is_forbidden or agent.is_refused:
        return "escaped"
    is_held_back = (
        agent.is_overridden
        or agent.needs_revision
        or agent.status == BLOCKED
        or len(agent.calls) > 0
    )
    has_reached = _has_settled(agent) or _is_verified(agent)
    return "converged" if has_reached and not is_held_back else "partial"


def _is_aborted(agent: Agent, ending: Ending) -> bool:
    # Who has handed over has no part in how the run ended.
    if agent.last_act == "handoff":
        return False
    if ending.type == "run.cancelled":
        return True
    return ending.type in _FAILURES and (
        ending.failed_agent is agent
        or agent.status == BLOCKED
        or len(agent.calls) > 0
        or agent.last_act != "decision"
    )


def _has_settled(agent: Agent) -> bool:
    is_sure = agent.confidence is None or agent.is_confident() or agent.is_ratified
    return agent.has_decided and is_sure


def _is_verified(agent: Agent) -> bool:
    return agent.verdicts_passed > 0 and agent.verdicts_failed == 0


def score_of(agent: Agent, outcome: AgentOutcome) -> float | None:
    """How far the agent converged: 1.0 if and only if it did, less for a part, else unknown."""
    if outcome == "converged":
        return 1.0
    if outcome != "partial":
        return None
    score = _sureness(agent)
    passes = agent.verdicts_passed + agent.criteria_met
    fails = agent.verdicts_failed + agent.criteria_unmet
    if passes + fails:
        score = (1.0 if score is None else score) * passes / (passes + fails)
    return None if score is None else round(min(score, _MOST_PARTIAL), 4)


def _sureness(agent: Agent) -> float | None:
    if not agent.has_decided:
        return None
    if agent.is_ratified or agent.threshold == 0:
        return 1.0
    return None if agent.confidence is None else min(1.0, agent.confidence / agent.threshold)
