"""Confidence and reasoning: when a decision is escalated, and how much reasoning is recorded."""

from __future__ import annotations

import math
from typing import Final, TypeGuard, cast, get_args

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.events.agent import Verbosity

DEFAULT_THRESHOLD: Final = 0.7
BYTES_PER_TOKEN: Final = 4
_ELLIPSIS: Final = "…"
_VERBOSITIES: Final = frozenset(get_args(Verbosity))


def confidence_threshold(configurable: JsonObject, manifest_threshold: float | None) -> float:
    """Return the confidence threshold: the run's, else the agent's, else 0.7."""
    for candidate in (configurable.get("escalationThreshold"), manifest_threshold):
        if _is_number(candidate) and 0 <= candidate <= 1:
            return float(candidate)
    return DEFAULT_THRESHOLD


def is_low_confidence(confidence: Json, threshold: float) -> bool:
    """Return whether a confidence is below the threshold. False if it is not a number."""
    return _is_number(confidence) and confidence < threshold


def reasoning_verbosity(configurable: JsonObject, host_default: Verbosity) -> Verbosity:
    """Return the reasoning verbosity of a run; an unknown value is ignored."""
    wanted = configurable.get("reasoningVerbosity")
    is_known = isinstance(wanted, str) and wanted in _VERBOSITIES
    return cast("Verbosity", wanted) if is_known else host_default


def truncate_text(text: str, token_limit: int) -> str:
    """Cut a text to a number of tokens of four bytes each. A cut text ends with an ellipsis."""
    budget = max(token_limit, 0) * BYTES_PER_TOKEN
    raw = text.encode("utf-8", "replace")
    if len(raw) <= budget:
        return text
    room = budget - len(_ELLIPSIS.encode())
    # A character that would be split is removed.
    return raw[:room].decode("utf-8", "ignore") + _ELLIPSIS if room >= 0 else ""


def _is_number(value: Json) -> TypeGuard[float]:
    """Return whether a JSON value is a finite number. A boolean is not a number."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
