"""Budgets of model calls: what may still be used, and how a run ends that would use more."""

from __future__ import annotations

from typing import Final

from wopr.engine.outcome import Breached
from wopr.nodes.llm_config import Budget
from wopr.nodes.llm_context import Caps, Spent
from wopr.protocol.documents import Unset
from wopr.protocol.runs import RunError

# What a call costs at least, as long as nobody knows better.
ONE_CALL: Final = Spent(tokens=1, cost_usd=0.000001, calls=1)
ONE_TOOL_CALL: Final = Spent(tool_calls=1)
NOTHING: Final = Spent()

# Each thing that is counted, with its kind of cap and the error of a run that breaks it.
_COUNTED: Final = (
    ("tokens", "budget-tokens", "token_budget_exceeded"),
    ("cost_usd", "budget-cost", "budget_exhausted"),
    ("calls", "envelopes", "budget_exhausted"),
    ("tool_calls", "budget-tool-calls", "budget_exhausted"),
)
# What is counted, in the words of a message.
_WORDS: Final = {
    "tokens": "tokens",
    "cost_usd": "US dollars",
    "calls": "model requests",
    "tool_calls": "tool calls",
}


def caps_of(budget: Budget) -> Caps:
    """A node's own caps."""
    return Caps(
        tokens=None if isinstance(budget.max_tokens, Unset) else budget.max_tokens,
        cost_usd=None if isinstance(budget.max_cost_usd, Unset) else budget.max_cost_usd,
        calls=budget.max_calls,
        tool_calls=None if isinstance(budget.max_tool_calls, Unset) else budget.max_tool_calls,
    )


def breach(spent: Spent, caps: Caps, scope: str, wanted: Spent = NOTHING) -> Breached | None:
    """The cap that is broken by what was used and what is wanted now; None while all hold.

    Only what more is wanted of is refused beforehand: a spent budget of tool calls keeps no
    model from answering.
    """
    total = spent + wanted
    for name, kind, code in _COUNTED:
        limit: float | None = getattr(caps, name)
        observed: float = getattr(total, name)
        is_concerned = getattr(wanted, name) > 0 or wanted == NOTHING
        if limit is not None and is_concerned and observed > limit:
            words = f"the {scope} may use {limit:g} {_WORDS[name]}"
            error = RunError(
                code=code, message=f"{words}, and comes to {observed:g}", retryable=False
            )
            return Breached(kind=kind, limit=limit, observed=observed, error=error, scope=scope)
    return None
