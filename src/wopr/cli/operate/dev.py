"""`wopr dev`: serve an app, and restart it when its files change."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from wopr.cli.database import data_dir
from wopr.cli.errors import command
from wopr.cli.operate.serve import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    AppArgument,
    DataDirOption,
    HostOption,
    PortOption,
    describe,
    load,
)
from wopr.cli.output import print_line


@command
def dev(
    app: AppArgument,
    host: HostOption = DEFAULT_HOST,
    port: PortOption = DEFAULT_PORT,
    data: DataDirOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only load the app and list its contents.")
    ] = False,
) -> None:
    """Serve an app and reload it when a Python file in its folder changes.

    The data is kept, and runs continue. If the app cannot be loaded, the error is shown with its
    line, and the previous version keeps running.
    """
    if check:
        for line in describe(app, load(app)):
            print_line(line)
        return
    import anyio

    from wopr.cli.operate.reload import Reloader

    chosen_port = port or _free_port(host)
    serve = ("serve", "--app", app, "--host", host, "--port", str(chosen_port))
    folder = Path(app.partition(":")[0]).resolve().parent
    anyio.run(Reloader(app, folder, (*serve, "--data-dir", str(data_dir(data)))).run)


def _free_port(host: str) -> int:
    """Find a free port, which all reloads then use."""
    with socket.create_server((host, 0)) as server:
        found: int = server.getsockname()[1]
        return found
