"""`wopr dev`: serve an app, and serve it anew whenever its files change."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import anyio
import anyio.abc
import typer

from wopr.cli.apps import AppArgument, loaded, told
from wopr.cli.errors import command
from wopr.cli.output import note, print_line
from wopr.cli.paths import DATA_DIR_VARIABLE, data_dir

# The same command in another process: a fresh one has no module of the app before the change.
_WOPR: Final = (sys.executable, "-c", "from wopr.cli.main import main; main()")
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_STOP_SECONDS: Final = 15


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
    place = port or _free_port(host)
    serve = ("serve", "--app", app, "--host", host, "--port", str(place))
    folder = Path(app.partition(":")[0]).resolve().parent
    anyio.run(_Served(app, folder, (*serve, "--data-dir", str(data_dir(data)))).run)


def _free_port(host: str) -> int:
    """One port for all reloads."""
    with socket.create_server((host, 0)) as server:
        found: int = server.getsockname()[1]
        return found


@dataclass(slots=True)
class _Served:
    """The process that serves the app, and the one before it until the new one can be loaded."""

    app: str
    folder: Path
    arguments: tuple[str, ...]
    process: anyio.abc.Process | None = None

    async def run(self) -> None:
        """Serve until a signal comes."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._reload_on_change, tasks)
            with anyio.open_signal_receiver(*_STOP_SIGNALS) as signals:
                async for _ in signals:
                    break
            tasks.cancel_scope.cancel()
        await self._stop()

    async def _reload_on_change(self, tasks: anyio.abc.TaskGroup) -> None:
        # Only this command needs it, and it takes a while to load.
        from watchfiles import (
            PythonFilter,
            awatch,  # pyright: ignore[reportUnknownVariableType]  # of its stop event
        )

        await self._reload(tasks)
        async for _ in awatch(self.folder, watch_filter=PythonFilter()):
            await self._reload(tasks)

    async def _reload(self, tasks: anyio.abc.TaskGroup) -> None:
        checked = await anyio.run_process(
            [*_WOPR, "dev", "--check", self.app], check=False, stdout=None, stderr=None
        )
        if checked.returncode != 0:
            note(
                "nothing is served until that is mended"
                if self.process is None
                else "the version before keeps serving"
            )
            return
        await self._stop()
        self.process = await anyio.open_process(
            [*_WOPR, *self.arguments], stdin=subprocess.DEVNULL, stdout=None, stderr=None
        )
        tasks.start_soon(self._outlive, self.process)

    async def _outlive(self, process: anyio.abc.Process) -> None:
        """Say that a process ended which nobody stopped, such as one whose port was taken."""
        await process.wait()
        if self.process is process:
            self.process = None
            note("the host has stopped; the next change of a file starts it again")

    async def _stop(self) -> None:
        """Stop the process politely, and at once if it does not end."""
        process, self.process = self.process, None
        if process is None:
            return
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with anyio.move_on_after(_STOP_SECONDS):
                await process.wait()
                return
            process.kill()
            await process.wait()
