"""`wopr serve`: run the host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode, exit_code_of_status
from wopr.cli.options import DbOption
from wopr.cli.paths import DATA_DIR_VARIABLE, data_dir, database_url
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.http.app import Pages
    from wopr.runtime.settings import Settings


@command
def serve(
    host: Annotated[str, typer.Option(envvar="WOPR_HOST", help="The address to listen on.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int,
        typer.Option(envvar="WOPR_PORT", min=0, max=65535, help="The port; 0 picks a free one."),
    ] = 8642,
    db: DbOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", envvar=DATA_DIR_VARIABLE, help="Where files are kept. Default: ./data"
        ),
    ] = None,
    workflows: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="WOPR_WORKFLOWS",
            metavar="DIR",
            help="Register the JSON and YAML definitions of a directory; repeatable.",
        ),
    ] = None,
    conformance: Annotated[
        bool,
        typer.Option(
            "--conformance", envvar="WOPR_CONFORMANCE", help="Install the conformance workflows."
        ),
    ] = False,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(envvar="WOPR_LOG_FORMAT", help="How to log.")
    ] = "text",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="WOPR_LOG_LEVEL", help="From which level on to log."),
    ] = "info",
) -> None:
    """Run the host until it is stopped.

    WOPR_API_KEYS="key:tenant[:role],..." adds keys; other settings are WOPR_* variables too.
    """
    from wopr.http.server import serve as serve_http
    from wopr.runtime.host_secret import UnusableHostKey
    from wopr.runtime.settings import Settings, with_environment

    settings = Settings(
        host=host,
        port=port,
        db=database_url(db, data),
        data_dir=data_dir(data),
        workflows=tuple(workflows or ()),
        conformance=conformance,
        log_format=log_format,
        log_level=log_level,
    )
    try:
        checked = with_environment(settings, os.environ).checked()
    except ValueError as fault:
        raise CliError(str(fault), ExitCode.USAGE) from None
    try:
        serve_http(checked, _pages(checked))
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    except UnusableHostKey as fault:
        raise CliError(str(fault), ExitCode.USAGE) from None
    except OSError as fault:
        raise CliError(str(fault), ExitCode.UNAVAILABLE) from None


def _pages(settings: Settings) -> Pages | None:
    """The web console, unless it is switched off."""
    if not settings.console:
        return None
    from wopr.console.app import console

    return console
