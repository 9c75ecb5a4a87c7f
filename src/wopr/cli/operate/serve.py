"""`wopr serve`: run the host."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from wopr.cli.database import DATA_DIR_VARIABLE, data_dir, database_url
from wopr.cli.errors import CliError, ExitCode, command, exit_code_of_status
from wopr.cli.options import DbOption
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.host.contributions import Contributions
    from wopr.http.app import OpenHost, Pages
    from wopr.process.settings import Settings


AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]", help="A Python file with agents and workflows, or one name in it."
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        envvar="WOPR_APP",
        metavar="FILE[:NAME]",
        help="Serve the agents, tools, node types and workflows of a Python file.",
    ),
]


def load(target: str) -> Contributions:
    """Load an app. Raises `CliError` with the line of the error."""
    from wopr.api.apps import AppError, load_app

    try:
        return load_app(target)
    except AppError as fault:
        hint = f"the line is: {fault.code}" if fault.code else None
        raise CliError(str(fault), ExitCode.USAGE, code="app_error", hint=hint) from None


def describe(target: str, app: Contributions) -> list[str]:
    """Describe the contents of an app, and the commands to try."""
    lines = [f"{target} contains"]
    parts = (
        ("agent", [str(agent["agentId"]) for agent in app.agents]),
        ("tool", [tool.name for tool in app.tools]),
        ("node type", [node_type.type_id for node_type in app.node_types]),
        ("workflow", [str(workflow["id"]) for workflow in app.workflows]),
    )
    lines += [f"  {kind:<10} {name}" for kind, names in parts for name in names]
    if len(lines) == 1:
        lines.append("  nothing    no agent, tool, node type or workflow at its top level")
    for workflow in app.workflows:
        inputs = "".join(
            f" -i {variable['name']}=…"
            for variable in workflow["variables"]
            if variable.get("required")
        )
        lines.append(f"  try        wopr run {workflow['id']}{inputs} --follow")
    lines += [f"  needs      {missing}" for missing in _missing_settings(app)]
    return [*lines, "  see        wopr inbox list, wopr runs list"]


def _missing_settings(app: Contributions) -> list[str]:
    """Return the settings that the models of an app need and that are not set."""
    from wopr.host.agents import missing_requirements
    from wopr.process.settings import Settings, with_environment

    if app.models is not None:
        return []
    # The host reports an invalid setting when it starts.
    with suppress(ValueError):
        return missing_requirements(_models(app), with_environment(Settings(), os.environ))
    return []


def _models(app: Contributions) -> list[str]:
    """Return the models of an app's workflows, except those that use a tenant's credential."""
    nodes = [node for workflow in app.workflows for node in workflow["nodes"]]
    named = [
        str(node["config"]["model"])
        for node in nodes
        if "model" in node.get("config", {}) and "credentialsRef" not in node
    ]
    return list(dict.fromkeys(named))


DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8642
HostOption: TypeAlias = Annotated[
    str, typer.Option(envvar="WOPR_HOST", help="The address to listen on.")
]
PortOption: TypeAlias = Annotated[
    int, typer.Option(envvar="WOPR_PORT", min=0, max=65535, help="The port; 0 picks a free one.")
]
DataDirOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", envvar=DATA_DIR_VARIABLE, help="The data directory. Default: ./data"
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
    Literal["text", "json"], typer.Option(envvar="WOPR_LOG_FORMAT", help="The format of the log.")
]
LogLevelOption: TypeAlias = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(envvar="WOPR_LOG_LEVEL", help="The lowest level to log."),
]


@command
def serve(
    host: HostOption = DEFAULT_HOST,
    port: PortOption = DEFAULT_PORT,
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
            "--no-worker", envvar="WOPR_NO_WORKER", help="Do not execute nodes; workers do that."
        ),
    ] = False,
) -> None:
    """Run the host until it is stopped.

    WOPR_API_KEYS="key:tenant[:role],..." adds keys. All other settings are WOPR_* variables too.
    """
    from wopr.process.settings import Settings

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
    """Require a database that several processes can share. Raises `CliError`."""
    from wopr.store.open import is_shared

    if not is_shared(url):
        message = f"{what} needs a database that several processes can use: --db postgresql://..."
        raise CliError(message, ExitCode.USAGE)


def run_until_stopped(settings: Settings, app: str | None = None) -> None:
    """Serve with these settings and those of the environment until stopped. Raises `CliError`.

    `app` is a Python file with workflows, agents and tools.
    """
    from wopr.http.server import serve as serve_http
    from wopr.process.keys import UnusableHostKey
    from wopr.process.settings import with_environment
    from wopr.security.encryption import UnusableKeys

    try:
        checked = with_environment(settings, os.environ).validate()
    except ValueError as fault:
        raise CliError(str(fault), ExitCode.USAGE) from None
    open_host: OpenHost | None = None
    if app is not None:
        from wopr.host.contributions import contributed_host

        open_host = partial(contributed_host, checked, load(app))
    try:
        serve_http(checked, _pages(checked), open_host)
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    except (UnusableHostKey, UnusableKeys) as fault:
        raise CliError(str(fault), ExitCode.USAGE) from None
    except OSError as fault:
        raise CliError(str(fault), ExitCode.UNAVAILABLE) from None


def _pages(settings: Settings) -> Pages | None:
    """Return the web console, unless it is disabled or this is a worker."""
    if not (settings.console and settings.serves):
        return None
    from wopr.console.app import console

    return console


@command
def worker(
    db: DbOption = None,
    host: Annotated[
        str, typer.Option(envvar="WOPR_WORKER_HOST", help="The address of the health endpoints.")
    ] = DEFAULT_HOST,
    port: Annotated[
        int,
        typer.Option(
            envvar="WOPR_WORKER_PORT",
            min=0,
            max=65535,
            help="The port of the health endpoints; 0 picks a free one.",
        ),
    ] = 0,
    data: DataDirOption = None,
    workflows: WorkflowsOption = None,
    app: AppOption = None,
    code_version: CodeVersionOption = "",
    conformance: ConformanceOption = False,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "info",
) -> None:
    """Execute runs until stopped. Workers on several machines can share a database.

    All workers need the same host key: WOPR_HOST_KEY.
    """
    from wopr.process.settings import Settings

    url = database_url(db, data)
    require_shared(url, "wopr worker")
    run_until_stopped(
        Settings(
            host=host,
            port=port,
            db=url,
            data_dir=data_dir(data),
            workflows=tuple(workflows or ()),
            conformance=conformance,
            log_format=log_format,
            log_level=log_level,
            serves=False,
            code_version=code_version,
        ),
        app,
    )
