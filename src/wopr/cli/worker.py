"""`wopr worker`: execute the runs of a database that processes share, and answer no requests."""

from __future__ import annotations

from typing import Annotated

import typer

from wopr.cli.apps import AppOption
from wopr.cli.errors import command
from wopr.cli.options import DbOption
from wopr.cli.paths import data_dir, database_url
from wopr.cli.serve import (
    CodeVersionOption,
    ConformanceOption,
    DataDirOption,
    LogFormatOption,
    LogLevelOption,
    WorkflowsOption,
    require_shared,
    run_until_stopped,
)


@command
def worker(
    db: DbOption = None,
    host: Annotated[
        str, typer.Option(envvar="WOPR_WORKER_HOST", help="The address that its health is on.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            envvar="WOPR_WORKER_PORT",
            min=0,
            max=65535,
            help="The port that its health is on; 0 picks a free one.",
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
    """Execute runs until stopped: as many workers on as many machines as you like.

    All of them need the host key of the first: WOPR_HOST_KEY.
    """
    from wopr.runtime.settings import Settings

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
