"""Serves an app in a process of its own, and in a new one whenever a file of the app changes."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.abc

from wopr.cli.output import note

# The same command in another process: a fresh one has no module of the app before the change.
_WOPR: Final = (sys.executable, "-c", "from wopr.cli.main import main; main()")
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_STOP_SECONDS: Final = 15


@dataclass(slots=True)
class Reloading:
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
