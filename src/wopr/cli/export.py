"""`wopr export`: runs with their annotations, as a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from wopr.cli.conversation import ask
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.filters import run_query
from wopr.cli.options import KeyOption, Target, UrlOption
from wopr.cli.output import note
from wopr.cli.runs import StatusOption
from wopr.protocol.reviews import ExportFormat

if TYPE_CHECKING:
    from wopr.cli.connection import Client


@command
def export(
    format_name: Annotated[
        ExportFormat, typer.Option("--format", help="jsonl with everything, or flat rows.")
    ] = "jsonl",
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where to; - is standard output.")
    ] = "-",
    status: StatusOption = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Created since: 2h, 7d, or an ISO 8601 time.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Created before: 2h, 7d, or an ISO 8601 time.")
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Export runs and their annotations, newest first, however many there are."""
    query = {
        "format": format_name,
        **run_query(status=status, workflow=workflow, tag=tag, since=since, until=until),
    }
    target = Target(url, api_key)
    if out == "-":
        ask(target, lambda client: _copy(client, query, sys.stdout.buffer))
        return
    path = Path(out)
    size = ask(target, lambda client: write_whole(path, lambda file: _copy(client, query, file)))
    note(f"{out}: {size} bytes")


async def write_whole(path: Path, write: Callable[[BinaryIO], Awaitable[int]]) -> int:
    """Write to a file beside the wanted one, which takes its name once it is whole."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            size = await write(file)
        os.replace(part, path)
    except OSError as fault:
        raise CliError(f"cannot write {path}: {fault.strerror}", ExitCode.USAGE) from None
    finally:
        part.unlink(missing_ok=True)
    return size


async def _copy(client: Client, query: dict[str, str], file: BinaryIO) -> int:
    size = 0
    async with aclosing(client.export(query)) as chunks:
        async for chunk in chunks:
            size += file.write(chunk)
    file.flush()
    return size
