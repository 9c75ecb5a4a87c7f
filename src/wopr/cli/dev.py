"""`wopr dev`: serve an app, and serve it anew whenever its files change."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from wopr.cli.apps import AppArgument, loaded, told
from wopr.cli.errors import command
from wopr.cli.output import print_line
from wopr.cli.paths import DATA_DIR_VARIABLE, data_dir


@command
def dev(
    app: AppArgument,
    host: Annotated[str, typer.Option(envvar="WOPR_HOST", help="The address to listen on.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int,
        typer.Option(envvar="WOPR_PORT", min=0, max=65535, help="The port; 0 picks a free one."),
    ] = 8642,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", envvar=DATA_DIR_VARIABLE, help="Where files are kept. Default: ./data"
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only load the app, and say what it has.")
    ] = False,
) -> None:
    """Serve an app and reload it when a Python file beside it changes.

    The data stays, and runs go on where they were. An app that cannot be loaded is told with the
    line at fault, and the version before it keeps serving.
    """
    if check:
        for line in told(app, loaded(app)):
            print_line(line)
        return
    import anyio

    from wopr.cli.reloading import Reloading

    place = port or _free_port(host)
    serve = ("serve", "--app", app, "--host", host, "--port", str(place))
    folder = Path(app.partition(":")[0]).resolve().parent
    anyio.run(Reloading(app, folder, (*serve, "--data-dir", str(data_dir(data)))).run)


def _free_port(host: str) -> int:
    """One port for all reloads."""
    with socket.create_server((host, 0)) as server:
        found: int = server.getsockname()[1]
        return found
