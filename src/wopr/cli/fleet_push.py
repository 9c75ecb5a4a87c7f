"""`wopr fleet push`: send KAHN logs to a server, whole files or whole archives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from wopr.cli.conversation import ask
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.fleet_graphs import with_graphs
from wopr.cli.fleet_lines import SourceLine, chunked, find_logs
from wopr.cli.fleet_sending import Refused, Sender, Sent, files_of
from wopr.cli.options import JsonOption, KeyOption, Target, UrlOption
from wopr.cli.output import error_console, note, plain, print_json_value, print_line

if TYPE_CHECKING:
    from wopr.cli.connection import Client

PatienceOption = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds to go on trying while the server is busy or cannot be reached."
    ),
]
PATIENCE: Final = 120.0
Moved = Callable[[int], None]


@command
def push_logs(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Logs, archives, or folders with logs."),
    ],
    patience: PatienceOption = PATIENCE,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push KAHN logs; lines that the server has already are found and not stored twice.

    The graph.json beside a log is sent along with the line that begins its run. After an
    interruption, push the same again. A file with a line that the server refuses is named with
    that line, and nothing more of it is sent; all other files are.
    """
    report(send_logs(places, Target(url, api_key), patience, as_json=as_json), as_json=as_json)


def send_logs(places: list[Path], target: Target, patience: float, *, as_json: bool) -> Sent:
    """Send every log of these places and say what came of it."""
    logs = list(dict.fromkeys(log for place in places for log in find_logs(place)))
    if not logs:
        named = ", ".join(str(place) for place in places)
        raise CliError(f"no logs in {named}", ExitCode.NOT_FOUND, code="not_found")

    async def conversation(client: Client) -> Sent:
        with _progress(logs, is_silent=as_json) as (moved, say):
            sender = Sender(client, patience=patience, say=say)
            await _send_all(sender, logs, moved, say)
        return sender.sent

    return ask(target, conversation)


def report(sent: Sent, *, as_json: bool) -> None:
    """Print what came of a push, and end with an error if something was refused."""
    if as_json:
        print_json_value(sent.document())
    else:
        for fault in sent.faults:
            print_line(f"{fault.path}:{fault.line}: {fault.message}")
        print_line(
            f"{sent.accepted} lines accepted, {sent.duplicate} held already, {len(sent.runs)} runs"
        )
        if warning := sent.warning():
            note(warning)
    raise typer.Exit(ExitCode.FAILED if sent.faults else ExitCode.OK)


async def _send_all(
    sender: Sender, logs: list[Path], moved: Moved, say: Callable[[str], None]
) -> None:
    given_up: set[Path] = set()
    most_bytes = await sender.most_bytes()
    for chunk in chunked(with_graphs(_lines(logs, say), most_bytes, say), most_bytes):
        rest = chunk.without(given_up)
        while rest.lines:
            try:
                await sender.send(rest)
            except Refused as refused:
                sender.sent.faults += refused.faults
                given_up |= files_of(refused.faults)
                rest = rest.without(given_up)
                continue
            break
        moved(len(chunk.body))


def _lines(logs: list[Path], say: Callable[[str], None]) -> Iterator[SourceLine]:
    """The lines of all logs; a last line that is still being written is left for another time."""
    for path in logs:
        try:
            with path.open("rb") as log:
                for number, raw in enumerate(log, 1):
                    if not raw.endswith(b"\n") and not is_whole(raw):
                        say(f"{path}:{number}: not a whole line yet, left out")
                    elif raw.strip():
                        yield SourceLine(path, number, raw.removesuffix(b"\n"))
        except OSError as fault:
            raise CliError(f"cannot read {path}: {fault.strerror}", ExitCode.USAGE) from fault


def is_whole(raw: bytes) -> bool:
    """Tell whether a line without its newline is one, or the first part of one."""
    import msgspec

    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return True


@contextmanager
def _progress(
    logs: list[Path], *, is_silent: bool
) -> Generator[tuple[Moved, Callable[[str], None]], None, None]:
    """A bar on a terminal; how to move it, and how to say something beside it."""
    if is_silent or not sys.stderr.isatty():
        yield (lambda _: None), note
        return
    columns = (TextColumn("pushing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=error_console(), transient=True) as bar:
        task = bar.add_task("push", total=sum(path.stat().st_size for path in logs))

        def moved(size: int) -> None:
            bar.advance(task, size)

        def say(text: str) -> None:
            bar.console.print(plain(text), style="dim", soft_wrap=True)

        yield moved, say
