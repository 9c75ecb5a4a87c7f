"""`wopr fleet tail`: follow growing KAHN logs and push what is appended to them."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.conversation import ask
from wopr.cli.errors import CliError, command
from wopr.cli.fleet_following import Follower
from wopr.cli.fleet_graphs import with_graphs
from wopr.cli.fleet_lines import MOST_BYTES, Chunk, Fault, SourceLine, chunked, find_logs
from wopr.cli.fleet_sending import Refused, Sender, files_of
from wopr.cli.options import JsonOption, KeyOption, Target, UrlOption
from wopr.cli.output import note, print_json_line, print_line
from wopr.protocol.documents import encode

if TYPE_CHECKING:
    from wopr.cli.connection import Client

# How long the answer to the last lines is waited for when it is asked to stop.
STOP_SECONDS = 5.0


@command
def tail(
    place: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A log, or an archive.")],
    interval: Annotated[
        float, typer.Option(min=0.05, help="Seconds between two looks at the files.")
    ] = 1.0,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow growing KAHN logs and push whole lines as they are written, until interrupted.

    It waits for a server that is away. Lines that the server refuses are named and left out; a log
    that contradicts what the server holds is named and left alone until it is written anew.
    """
    ask(Target(url, api_key), lambda client: _until_stopped(client, place, interval, as_json))


async def _until_stopped(client: Client, place: Path, interval: float, as_json: bool) -> None:
    import anyio

    sender = Sender(client, patience=math.inf, say=note)
    following = Tail(sender, place, interval, as_json=as_json)
    failures: list[CliError] = []

    async def follow() -> None:
        try:
            await following.run_forever()
        except CliError as error:
            # Out of the task group it would come as a group of errors.
            failures.append(error)
            tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            async for _ in signals:
                with anyio.move_on_after(STOP_SECONDS):
                    await sender.answered()
                tasks.cancel_scope.cancel()
                break
    for error in failures:
        raise error
    sent = sender.sent
    note(f"{sent.accepted} lines accepted, {sent.duplicate} held already, {len(sent.runs)} runs")
    if warning := sent.warning():
        note(warning)


class Tail:
    """Follows every log of one place."""

    def __init__(self, sender: Sender, place: Path, interval: float, *, as_json: bool) -> None:
        self._sender = sender
        self._place = place
        self._interval = interval
        self._as_json = as_json
        self._followers: dict[Path, Follower] = {}
        # Logs whose lines contradict the server's, by what they were at the time.
        self._left_alone: dict[Path, int] = {}

    async def run_forever(self) -> None:
        """Look, send, and look again, until cancelled."""
        import anyio

        while True:
            lines = self._news()
            if lines:
                for chunk in chunked(with_graphs(lines, MOST_BYTES, note), MOST_BYTES):
                    await self._send(chunk)
            else:
                await anyio.sleep(self._interval)

    def _news(self) -> list[SourceLine]:
        if self._place.exists():
            for path in find_logs(self._place):
                self._followers.setdefault(path, Follower(path))
        lines = [line for follower in self._followers.values() for line in follower.poll()]
        for path in [path for path, each in self._followers.items() if each.is_gone]:
            del self._followers[path]
        return [line for line in lines if not self._is_left_alone(line)]

    def _is_left_alone(self, line: SourceLine) -> bool:
        """A log is looked at again when its lines are counted from a place before the fault."""
        fault = self._left_alone.get(line.path)
        if fault is not None and line.number < fault:
            del self._left_alone[line.path]
            return False
        return fault is not None

    async def _send(self, chunk: Chunk) -> None:
        before = self._sender.sent.accepted
        rest = chunk
        while rest.lines:
            try:
                await self._sender.send(rest)
                break
            except Refused as refused:
                self._tell_faults(refused.faults)
                rest = self._without(rest, refused)
        self._tell(self._sender.sent.accepted - before)

    def _without(self, chunk: Chunk, refused: Refused) -> Chunk:
        """What is left of a chunk: all but bad lines, and nothing of a log that contradicts."""
        if refused.code != "would_rewrite":
            bad = {(fault.path, fault.line) for fault in refused.faults}
            return Chunk(tuple(x for x in chunk.lines if (x.path, x.number) not in bad))
        for fault in refused.faults:
            self._left_alone[fault.path] = max(fault.line, self._left_alone.get(fault.path, 0))
        return chunk.without(files_of(refused.faults))

    def _tell_faults(self, faults: list[Fault]) -> None:
        for fault in faults:
            note(f"{fault.path}:{fault.line}: {fault.message}")

    def _tell(self, accepted: int) -> None:
        if not accepted:
            return
        if self._as_json:
            print_json_line(encode({"accepted": accepted}))
        else:
            print_line(f"{accepted} lines accepted")
