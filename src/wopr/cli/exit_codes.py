"""The exit codes: one table for the commands, the help text and the documentation."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """What a script may branch on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    CONFLICT = 5
    UNAVAILABLE = 6
    CANCELLED = 7
    TIMEOUT = 124
    INTERRUPTED = 130


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "it worked",
    ExitCode.FAILED: "the run failed, a check did, or what was compared differs",
    ExitCode.USAGE: "wrong usage, or a value that was refused",
    ExitCode.NOT_FOUND: "no such run, workflow or key",
    ExitCode.DENIED: "no valid API key, or one that may not do this",
    ExitCode.CONFLICT: "the present state forbids it",
    ExitCode.UNAVAILABLE: "the server cannot be reached or cannot serve now",
    ExitCode.CANCELLED: "the run was cancelled",
    ExitCode.TIMEOUT: "--timeout passed; the run goes on",
    ExitCode.INTERRUPTED: "interrupted from the keyboard; the run goes on",
}

_BY_STATUS: Final[dict[int, ExitCode]] = {
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CONFLICT,
    410: ExitCode.NOT_FOUND,
    426: ExitCode.UNAVAILABLE,
    429: ExitCode.UNAVAILABLE,
}
_BY_RUN_STATUS: Final[dict[str, ExitCode]] = {
    "failed": ExitCode.FAILED,
    "cancelled": ExitCode.CANCELLED,
}


def exit_code_of_status(status: int) -> ExitCode:
    """Translate the HTTP status of an error answer."""
    if 400 <= status < 500:
        return _BY_STATUS.get(status, ExitCode.USAGE)
    return ExitCode.UNAVAILABLE


def exit_code_of_run(status: str) -> ExitCode:
    """Translate the status that a run ended with."""
    return _BY_RUN_STATUS.get(status, ExitCode.OK)


def exit_code_table() -> str:
    """The table as the help text shows it."""
    lines = (f"{int(code):>3}  {meaning}" for code, meaning in MEANINGS.items())
    return "\n".join(("Exit codes:", *lines))
