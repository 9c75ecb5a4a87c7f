"""The one failure that a command ends with, and how it is told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import typer

from wopr.cli.documents import list_of, object_of
from wopr.cli.exit_codes import ExitCode
from wopr.protocol.documents import JsonObject, encode

P = ParamSpec("P")


class CliError(Exception):
    """A failure with its exit code, and where there is one, the way out.

    One that is transient may be over after a while; `retry_after` are the seconds that the server
    asks for.
    """

    def __init__(
        self,
        message: str,
        exit_code: ExitCode,
        *,
        code: str = "cli_error",
        hint: str | None = None,
        details: JsonObject | None = None,
        is_transient: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.code = code
        self.hint = hint
        self.details: JsonObject = details or {}
        self.is_transient = is_transient
        self.retry_after = retry_after


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Make a command end with a `CliError`'s message on stderr and its exit code."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except CliError as error:
            report(error, as_json=kwargs.get("as_json") is True)
            raise typer.Exit(error.exit_code) from None

    return call


def report(error: CliError, *, as_json: bool) -> None:
    """Tell a failure on stderr, so that stdout holds results only."""
    if as_json:
        typer.echo(encode(_document(error)).decode(), err=True)
        return
    from wopr.cli.output import error_console, labelled, plain

    console = error_console()
    console.print(labelled("error", "bold red", error.message), soft_wrap=True)
    named = faults(error.details)
    for fault in named if len(named) > 1 or not _is_told(error) else ():
        console.print(f"  {plain(fault)}", soft_wrap=True)
    if error.hint is not None:
        console.print(labelled("hint", "bold", error.hint), soft_wrap=True)


def _is_told(error: CliError) -> bool:
    """Tell whether the message already holds everything that the faults say."""
    entries = [object_of(entry) for entry in list_of(error.details.get("errors"))]
    return all(str(entry.get("message", "")) in error.message for entry in entries)


def faults(details: JsonObject) -> list[str]:
    """The single faults that a refusal names in `details.errors`, one line each."""
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
