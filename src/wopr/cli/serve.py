"""`wopr serve`: run the host."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from wopr.cli.apps import AppOption, loaded
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode, exit_code_of_status
from wopr.cli.options import DbOption
from wopr.cli.paths import DATA_DIR_VARIABLE, data_dir, database_url
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.http.app import Pages
    from wopr.runtime.contributions import Contributions
    from wopr.runtime.host import Host
    from wopr.runtime.settings import Settings

DataDirOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", envvar=DATA_DIR_VARIABLE, help="Where files are kept. Default: ./data"
    ),
]
WorkflowsOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        envvar="WOPR_WORKFLOWS",
        metavar="DIR",
        help="Register the JSON and YAML definitions of a directory; repeatable.",
    ),
]
ConformanceOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--conformance", envvar="WOPR_CONFORMANCE", help="Install the conformance workflows."
    ),
]
CodeVersionOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--code-version",
        envvar="WOPR_CODE_VERSION",
        help="The version of the code that executes nodes. Default: a digest of the app's sources.",
    ),
]
LogFormatOption: TypeAlias = Annotated[
    Literal["text", "json"], typer.Option(envvar="WOPR_LOG_FORMAT", help="How to log.")
]
LogLevelOption: TypeAlias = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(envvar="WOPR_LOG_LEVEL", help="From which level on to log."),
]


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
    data: DataDirOption = None,
    workflows: WorkflowsOption = None,
    app: AppOption = None,
    code_version: CodeVersionOption = "",
    conformance: ConformanceOption = False,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "info",
    no_worker: Annotated[
        bool,
        typer.Option(
            "--no-worker", envvar="WOPR_NO_WORKER", help="Leave the execution of nodes to workers."
        ),
    ] = False,
) -> None:
    """Run the host until it is stopped.

    WOPR_API_KEYS="key:tenant[:role],..." adds keys; other settings are WOPR_* variables too.
    """
    from wopr.runtime.settings import Settings

    url = database_url(db, data)
    if no_worker:
        require_shared(url, "--no-worker")
    settings = Settings(
        host=host,
        port=port,
        db=url,
        data_dir=data_dir(data),
        workflows=tuple(workflows or ()),
        conformance=conformance,
        log_format=log_format,
        log_level=log_level,
        executes=not no_worker,
        code_version=code_version,
    )
    run_until_stopped(settings, app)


def require_shared(url: str, what: str) -> None:
    """Refuse what makes sense only where several processes share a database."""
    from wopr.store.open import is_shared

    if not is_shared(url):
        message = f"{what} needs a database that processes share: --db postgresql://..."
        raise CliError(message, ExitCode.USAGE)


def run_until_stopped(settings: Settings, app: str | None = None) -> None:
    """Serve with these settings and what the environment says, and tell in one line what fails.

    The `app` brings workflows, agents and tools along.
    """
    from wopr.http.server import serve as serve_http
    from wopr.runtime.environment import with_environment
    from wopr.runtime.host_secret import UnusableHostKey
    from wopr.security.encryption import UnusableKeys

    try:
        checked = with_environment(settings, os.environ).checked()
    except ValueError as fault:
        raise CliError(str(fault), ExitCode.USAGE) from None
    open_host = None if app is None else partial(_app_host, checked, loaded(app))
    try:
        serve_http(checked, _pages(checked), open_host)
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    except (UnusableHostKey, UnusableKeys) as fault:
        raise CliError(str(fault), ExitCode.USAGE) from None
    except OSError as fault:
        raise CliError(str(fault), ExitCode.UNAVAILABLE) from None


def _app_host(settings: Settings, app: Contributions) -> AbstractAsyncContextManager[Host]:
    from wopr.runtime.contributions import contributed_host

    return contributed_host(settings, app)


def _pages(settings: Settings) -> Pages | None:
    """The web console, unless it is switched off or this is a worker."""
    if not (settings.console and settings.serves):
        return None
    from wopr.console.app import console

    return console
