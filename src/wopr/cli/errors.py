"""Errors of commands: exit codes, messages and hints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Final, ParamSpec

import typer

from wopr.protocol.documents import JsonObject, encode, list_of, object_of

P = ParamSpec("P")


class ExitCode(IntEnum):
    """The exit codes of all commands."""

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
    ExitCode.OK: "success",
    ExitCode.FAILED: "the run failed, a check failed, or the compared runs differ",
    ExitCode.USAGE: "wrong usage, or an invalid value",
    ExitCode.NOT_FOUND: "no such run, workflow or key",
    ExitCode.DENIED: "no valid API key, or a key without the needed scope",
    ExitCode.CONFLICT: "not possible in the current state",
    ExitCode.UNAVAILABLE: "the server cannot be reached or is not available",
    ExitCode.CANCELLED: "the run was cancelled",
    ExitCode.TIMEOUT: "--timeout has expired; the run continues",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C; the run continues",
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
    """Return the exit code for the HTTP status of an error."""
    if 400 <= status < 500:
        return _BY_STATUS.get(status, ExitCode.USAGE)
    return ExitCode.UNAVAILABLE


def exit_code_of_run(status: str) -> ExitCode:
    """Return the exit code for the final status of a run."""
    return _BY_RUN_STATUS.get(status, ExitCode.OK)


def exit_code_table() -> str:
    """Return the exit codes for the help text."""
    lines = (f"{int(code):>3}  {meaning}" for code, meaning in MEANINGS.items())
    return "\n".join(("Exit codes:", *lines))


class CliError(Exception):
    """An error with its exit code and an optional hint."""

    def __init__(
        self,
        message: str,
        exit_code: ExitCode,
        *,
        code: str = "cli_error",
        hint: str | None = None,
        details: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.code = code
        self.hint = hint
        self.details: JsonObject = details or {}


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Make a command report a `CliError` on stderr and exit with its code."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except CliError as error:
            report(error, as_json=kwargs.get("as_json") is True)
            raise typer.Exit(error.exit_code) from None

    return call


def report(error: CliError, *, as_json: bool) -> None:
    """Print an error on stderr. Stdout is only for results."""
    if as_json:
        typer.echo(encode(_document(error)).decode(), err=True)
        return
    from wopr.api.text import plain
    from wopr.cli.output import error_console, labelled

    console = error_console()
    console.print(labelled("error", "bold red", error.message), soft_wrap=True)
    named = faults(error.details)
    for fault in named if len(named) > 1 or not _is_in_message(error) else ():
        console.print(f"  {plain(fault)}", soft_wrap=True)
    if error.hint is not None:
        console.print(labelled("hint", "bold", error.hint), soft_wrap=True)


def _is_in_message(error: CliError) -> bool:
    """Return whether the message contains the text of every error in `details.errors`."""
    entries = [object_of(entry) for entry in list_of(error.details.get("errors"))]
    return all(str(entry.get("message", "")) in error.message for entry in entries)


def faults(details: JsonObject) -> list[str]:
    """Return the errors in `details.errors`, one line each."""
    return [_fault(object_of(entry)) for entry in list_of(details.get("errors"))]


def _fault(entry: JsonObject) -> str:
    where = entry.get("path", entry.get("line"))
    message = entry.get("message", "")
    return f"{where}: {message}" if where else str(message)


def _document(error: CliError) -> JsonObject:
    document: JsonObject = {
        "error": error.code,
        "message": error.message,
        "exitCode": int(error.exit_code),
    }
    if error.details:
        document["details"] = error.details
    return document
