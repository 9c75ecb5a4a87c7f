"""`wopr fleet push`: send KAHN logs or archives to a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from wopr.api.text import plain
from wopr.cli.client import with_client
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.fleet.upload import (
    ChunkRefused,
    SourceLine,
    Uploader,
    UploadResult,
    add_graphs,
    files_of,
    find_logs,
    split_into_chunks,
)
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import error_console, note, print_json_value, print_line

if TYPE_CHECKING:
    from wopr.api.client import Client

PatienceOption = Annotated[
    float,
    typer.Option(min=0, help="Seconds to retry while the server is busy or cannot be reached."),
]
PATIENCE: Final = 120.0
Advance = Callable[[int], None]


@command
def push_logs(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Logs, archives, or folders with logs."),
    ],
    patience: PatienceOption = PATIENCE,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push KAHN logs. Lines that the server already has are not stored twice.

    The graph.json in the folder of a log is sent with the first line of the run. After an
    interruption, run the same command again. If the server refuses a line, it is reported and the
    rest of that file is skipped.
    """
    report(
        send_logs(paths, ServerOptions(url, api_key), patience, as_json=as_json), as_json=as_json
    )


def send_logs(
    paths: list[Path], target: ServerOptions, patience: float, *, as_json: bool
) -> UploadResult:
    """Send all logs of these files and folders, and return the result."""
    logs = list(dict.fromkeys(log for path in paths for log in find_logs(path)))
    if not logs:
        named = ", ".join(str(path) for path in paths)
        raise CliError(f"no logs in {named}", ExitCode.NOT_FOUND, code="not_found")

    async def work(client: Client) -> UploadResult:
        with _progress(logs, is_silent=as_json) as (advance, notify):
            uploader = Uploader(client, patience=patience, notify=notify)
            await _send_all(uploader, logs, advance, notify)
        return uploader.result

    return with_client(target, work)


def report(result: UploadResult, *, as_json: bool) -> None:
    """Print the result of a push, and exit with an error if a line was refused."""
    if as_json:
        print_json_value(result.document())
    else:
        for fault in result.faults:
            print_line(f"{fault.path}:{fault.line}: {fault.message}")
        print_line(result.summary())
        if warning := result.warning():
            note(warning)
    raise typer.Exit(ExitCode.FAILED if result.faults else ExitCode.OK)


async def _send_all(
    uploader: Uploader, logs: list[Path], advance: Advance, notify: Callable[[str], None]
) -> None:
    skipped: set[Path] = set()
    max_body_bytes = await uploader.max_body_bytes()
    for chunk in split_into_chunks(
        add_graphs(_lines(logs, notify), max_body_bytes, notify), max_body_bytes
    ):
        rest = chunk.without(skipped)
        while rest.lines:
            try:
                await uploader.send(rest)
            except ChunkRefused as refused:
                uploader.result.faults += refused.faults
                skipped |= files_of(refused.faults)
                rest = rest.without(skipped)
                continue
            break
        advance(len(chunk.body))


def _lines(logs: list[Path], notify: Callable[[str], None]) -> Iterator[SourceLine]:
    """Yield the lines of all logs, except a last line that is still incomplete."""
    for path in logs:
        try:
            with path.open("rb") as log:
                for number, raw in enumerate(log, 1):
                    if not raw.endswith(b"\n") and not is_complete(raw):
                        notify(f"{path}:{number}: incomplete line skipped")
                    elif raw.strip():
                        yield SourceLine(path, number, raw.removesuffix(b"\n"))
        except OSError as fault:
            raise CliError(f"cannot read {path}: {fault.strerror}", ExitCode.USAGE) from fault


def is_complete(raw: bytes) -> bool:
    """Return whether a line without a newline is complete."""
    import msgspec

    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return True


@contextmanager
def _progress(
    logs: list[Path], *, is_silent: bool
) -> Generator[tuple[Advance, Callable[[str], None]], None, None]:
    """Show a progress bar on a terminal. Yield functions to advance it and to print a note."""
    if is_silent or not sys.stderr.isatty():
        yield (lambda _: None), note
        return
    columns = (TextColumn("pushing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=error_console(), transient=True) as bar:
        task = bar.add_task("push", total=sum(path.stat().st_size for path in logs))

        def advance(size: int) -> None:
            bar.advance(task, size)

        def notify(text: str) -> None:
            bar.console.print(plain(text), style="dim", soft_wrap=True)

        yield advance, notify
