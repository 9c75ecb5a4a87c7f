"""`wopr fleet tail`: follow growing KAHN logs and push what is appended to them."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from wopr.api.errors import HostError
from wopr.cli.client import with_client
from wopr.cli.errors import CliError, command
from wopr.cli.fleet.upload import (
    MAX_BODY_BYTES,
    WOULD_REWRITE,
    Chunk,
    ChunkRefused,
    RefusedLine,
    SourceLine,
    Uploader,
    add_graphs,
    files_of,
    find_logs,
    split_into_chunks,
)
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import note, print_json_line, print_line
from wopr.protocol.documents import encode

if TYPE_CHECKING:
    from wopr.api.client import Client


READ_BYTES: Final = 1_048_576
# An idle log is closed after this time, because an archive may have more logs than open files are
# allowed.
IDLE_SECONDS: Final = 60.0
# The first bytes of a log identify it.
_HEAD_BYTES: Final = 256
# How long to wait for the response to the last lines after a signal.
STOP_SECONDS: Final = 5.0


class Follower:
    """Reads the lines of a log as they are appended, from the beginning.

    If a log was truncated or replaced, it is read again from its beginning. The server does not
    store lines twice. A log that was moved is read to its end before the new log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._appended_at = 0.0
        self._reset()

    @property
    def is_gone(self) -> bool:
        """Return whether the log was deleted and completely read."""
        return self._file is None and not self.path.exists()

    def poll(self) -> list[SourceLine]:
        """Return complete lines that were appended since the last call."""
        file = self._open()
        if file is None:
            return []
        if self._was_replaced(file):
            self._reset()
        file.seek(self._offset)
        appended = file.read(READ_BYTES)
        if appended:
            return self._split(file, appended)
        return self._at_end(file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _reset(self) -> None:
        self._offset = 0
        self._number = 0
        self._head = b""
        self._incomplete = b""

    def _open(self) -> BinaryIO | None:
        if self._file is not None:
            return self._file
        try:
            if self._offset and self.path.stat().st_size == self._offset:
                return None
            self._file = self.path.open("rb")
        except OSError:
            return None
        self._appended_at = time.monotonic()
        return self._file

    def _was_replaced(self, file: BinaryIO) -> bool:
        """Return whether the log was truncated or replaced."""
        if os.fstat(file.fileno()).st_size < self._offset:
            return True
        file.seek(0)
        return file.read(len(self._head)) != self._head

    def _split(self, file: BinaryIO, appended: bytes) -> list[SourceLine]:
        self._appended_at = time.monotonic()
        self._offset += len(appended)
        if len(self._head) < _HEAD_BYTES:
            file.seek(0)
            self._head = file.read(min(_HEAD_BYTES, self._offset))
        *complete, self._incomplete = (self._incomplete + appended).split(b"\n")
        return self._numbered(complete)

    def _numbered(self, complete: list[bytes]) -> list[SourceLine]:
        first = self._number + 1
        self._number += len(complete)
        return [
            SourceLine(self.path, number, raw)
            for number, raw in enumerate(complete, first)
            if raw.strip()
        ]

    def _at_end(self, file: BinaryIO) -> list[SourceLine]:
        """Close a log that is idle or was moved."""
        if self._was_moved(file):
            incomplete = [self._incomplete] if self._incomplete else []
            lines = self._numbered(incomplete)
            self.close()
            self._reset()
            return lines
        if time.monotonic() - self._appended_at > IDLE_SECONDS:
            self.close()
        return []

    def _was_moved(self, file: BinaryIO) -> bool:
        try:
            found = self.path.stat()
        except OSError:
            return True
        opened = os.fstat(file.fileno())
        return (found.st_dev, found.st_ino) != (opened.st_dev, opened.st_ino)


@command
def tail(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A log, or an archive.")],
    interval: Annotated[
        float, typer.Option(min=0.05, help="Seconds between two checks of the files.")
    ] = 1.0,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow growing KAHN logs and push complete lines, until interrupted.

    The command waits while the server is not available. Lines that the server refuses are reported
    and skipped. A log that contradicts the server is reported and skipped until it is written
    again.
    """
    with_client(
        ServerOptions(url, api_key), lambda client: _until_stopped(client, path, interval, as_json)
    )


async def _until_stopped(client: Client, path: Path, interval: float, as_json: bool) -> None:
    import anyio

    uploader = Uploader(client, patience=math.inf, notify=note)
    following = LogTail(uploader, path, interval, as_json=as_json)
    failures: list[CliError | HostError] = []

    async def follow() -> None:
        try:
            await following.run_forever()
        except (CliError, HostError) as error:
            # The task group would wrap it in an exception group.
            failures.append(error)
            tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            async for _ in signals:
                with anyio.move_on_after(STOP_SECONDS):
                    await uploader.wait_for_response()
                tasks.cancel_scope.cancel()
                break
    for error in failures:
        raise error
    result = uploader.result
    note(result.summary())
    if warning := result.warning():
        note(warning)


class LogTail:
    """Follows all logs of a file or folder."""

    def __init__(self, uploader: Uploader, path: Path, interval: float, *, as_json: bool) -> None:
        self._uploader = uploader
        self._path = path
        self._interval = interval
        self._as_json = as_json
        self._followers: dict[Path, Follower] = {}
        # Logs that contradict the server, with the number of the refused line.
        self._skipped_logs: dict[Path, int] = {}

    async def run_forever(self) -> None:
        """Check the files and send new lines, until cancelled."""
        import anyio

        while True:
            lines = self._new_lines()
            if lines:
                for chunk in split_into_chunks(
                    add_graphs(lines, MAX_BODY_BYTES, note), MAX_BODY_BYTES
                ):
                    await self._send(chunk)
            else:
                await anyio.sleep(self._interval)

    def _new_lines(self) -> list[SourceLine]:
        if self._path.exists():
            for path in find_logs(self._path):
                self._followers.setdefault(path, Follower(path))
        lines = [line for follower in self._followers.values() for line in follower.poll()]
        for path in [path for path, each in self._followers.items() if each.is_gone]:
            del self._followers[path]
        return [line for line in lines if not self._is_skipped(line)]

    def _is_skipped(self, line: SourceLine) -> bool:
        """Return whether a log is skipped. A log that was written again is no longer skipped."""
        fault = self._skipped_logs.get(line.path)
        if fault is not None and line.number < fault:
            del self._skipped_logs[line.path]
            return False
        return fault is not None

    async def _send(self, chunk: Chunk) -> None:
        before = self._uploader.result.accepted
        rest = chunk
        while rest.lines:
            try:
                await self._uploader.send(rest)
                break
            except ChunkRefused as refused:
                self._print_faults(refused.faults)
                rest = self._without(rest, refused)
        self._print_accepted(self._uploader.result.accepted - before)

    def _without(self, chunk: Chunk, refused: ChunkRefused) -> Chunk:
        """Return the chunk without refused lines, and without logs that contradict the server."""
        if refused.code != WOULD_REWRITE:
            bad = {(fault.path, fault.line) for fault in refused.faults}
            return Chunk(tuple(x for x in chunk.lines if (x.path, x.number) not in bad))
        for fault in refused.faults:
            self._skipped_logs[fault.path] = max(fault.line, self._skipped_logs.get(fault.path, 0))
        return chunk.without(files_of(refused.faults))

    def _print_faults(self, faults: list[RefusedLine]) -> None:
        for fault in faults:
            note(f"{fault.path}:{fault.line}: {fault.message}")

    def _print_accepted(self, accepted: int) -> None:
        if not accepted:
            return
        if self._as_json:
            print_json_line(encode({"accepted": accepted}))
        else:
            print_line(f"{accepted} lines accepted")
