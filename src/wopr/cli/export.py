"""`wopr export`: runs with their annotations, as a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeAlias

import typer

from wopr.cli.conversation import ask
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.filters import (
    CorrectedOption,
    FlaggedOption,
    LabelOption,
    RatedOption,
    SinceOption,
    StatusOption,
    TagOption,
    UntilOption,
    WorkflowOption,
    run_query,
)
from wopr.cli.options import KeyOption, Target, UrlOption
from wopr.cli.output import note
from wopr.protocol.reviews import ExportFormat

if TYPE_CHECKING:
    from wopr.cli.connection import Client

OutOption: TypeAlias = Annotated[
    str, typer.Option("--out", metavar="FILE", help="Where to; - is standard output.")
]


@command
def export(
    format_name: Annotated[
        ExportFormat, typer.Option("--format", help="jsonl with everything, or flat rows.")
    ] = "jsonl",
    out: OutOption = "-",
    status: StatusOption = None,
    workflow: WorkflowOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    flagged: FlaggedOption = None,
    rated: RatedOption = None,
    corrected: CorrectedOption = None,
    label: LabelOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Export runs and their annotations, newest first, however many there are."""
    query = {
        "format": format_name,
        **run_query(
            status=status,
            workflow=workflow,
            tag=tag,
            since=since,
            until=until,
            flagged=flagged,
            rated=rated,
            corrected=corrected,
            label=label,
        ),
    }
    write_out(Target(url, api_key), out, lambda client, file: _copy(client, query, file))


def write_out(
    target: Target, out: str, write: Callable[[Client, BinaryIO], Awaitable[int]]
) -> None:
    """Let `write` copy from the server to standard output or to a file."""
    if out == "-":
        ask(target, lambda client: write(client, sys.stdout.buffer))
        return
    path = Path(out)
    size = ask(target, lambda client: _write_whole(path, lambda file: write(client, file)))
    note(f"{out}: {size} bytes")


async def _write_whole(path: Path, write: Callable[[BinaryIO], Awaitable[int]]) -> int:
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
