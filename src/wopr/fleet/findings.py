"""What the checker says about a line, and how grave each kind of finding is."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

import msgspec

Level: TypeAlias = Literal["error", "warn", "info"]
FindingCode: TypeAlias = Literal[
    "schema",
    "not_started",
    "second_start",
    "bad_first_from",
    "discontinuous",
    "unlisted_transition",
    "extension_transition",
    "self_transition",
    "after_terminal",
    "step_backwards",
    "after_end",
    "totals_mismatch",
    "error_on_ok",
    "ci_order",
    "attempt_pairing",
    "ci_conditional",
    "outcome_status",
]
CODES: Final[tuple[FindingCode, ...]] = get_args(FindingCode)
_ERRORS: Final[frozenset[FindingCode]] = frozenset(
    {"schema", "after_terminal", "step_backwards", "after_end", "ci_conditional"}
)
LEVELS: Final[dict[FindingCode, Level]] = {
    code: "error" if code in _ERRORS else "info" if code == "extension_transition" else "warn"
    for code in CODES
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of one line, counted from 1."""

    line: int
    code: FindingCode
    level: Level
    message: str


def finding(line: int, code: FindingCode, message: str) -> Finding:
    """Make a finding of its code's level."""
    return Finding(line=line, code=code, level=LEVELS[code], message=message)
