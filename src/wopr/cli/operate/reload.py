"""Reloading for `wopr dev`: serves an app in a child process, and restarts it after changes."""

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

# A new process has no old modules of the app.
_WOPR: Final = (sys.executable, "-c", "from wopr.cli.main import main; main()")
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_STOP_SECONDS: Final = 15


@dataclass(slots=True)
class Reloader:
    """The process that serves the app. It is replaced when the new version can be loaded."""

    app: str
    folder: Path
    arguments: tuple[str, ...]
    process: anyio.abc.Process | None = None

    async def run(self) -> None:
        """Serve until a signal arrives."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._reload_on_change, tasks)
            with anyio.open_signal_receiver(*_STOP_SIGNALS) as signals:
                async for _ in signals:
                    break
            tasks.cancel_scope.cancel()
        await self._stop()

    async def _reload_on_change(self, tasks: anyio.abc.TaskGroup) -> None:
        # Imported here, because only this command needs it and it loads slowly.
        from watchfiles import (
            PythonFilter,
            awatch,  # pyright: ignore[reportUnknownVariableType]  # stop_event is untyped
        )

        await self._reload(tasks)
        async for _ in awatch(self.folder, watch_filter=PythonFilter()):
            await self._reload(tasks)

    async def _reload(self, tasks: anyio.abc.TaskGroup) -> None:
        check = await anyio.run_process(
            [*_WOPR, "dev", "--check", self.app], check=False, stdout=None, stderr=None
        )
        if check.returncode != 0:
            note(
                "nothing is served until the error is fixed"
                if self.process is None
                else "the previous version keeps running"
            )
            return
        await self._stop()
        self.process = await anyio.open_process(
            [*_WOPR, *self.arguments], stdin=subprocess.DEVNULL, stdout=None, stderr=None
        )
        tasks.start_soon(self._watch, self.process)

    async def _watch(self, process: anyio.abc.Process) -> None:
        """Report a process that ended by itself, for example because its port is in use."""
        await process.wait()
        if self.process is process:
            self.process = None
            note("the host has stopped; it starts again after the next change of a file")

    async def _stop(self) -> None:
        """Stop the process with SIGTERM, and kill it if it does not end."""
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
