"""`wopr export`: runs with their annotations, as a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeAlias

import typer

from wopr.cli.client import with_client
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.options import (
    CorrectedOption,
    FlaggedOption,
    KeyOption,
    LabelOption,
    RatedOption,
    ServerOptions,
    SinceOption,
    StatusOption,
    TagOption,
    UntilOption,
    UrlOption,
    WorkflowOption,
    run_query,
)
from wopr.cli.output import note
from wopr.protocol.resources.reviews import ExportFormat

if TYPE_CHECKING:
    from wopr.api.client import Client

OutOption: TypeAlias = Annotated[
    str, typer.Option("--out", metavar="FILE", help="The file to write; - is standard output.")
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
    """Export all matching runs with their annotations, newest first."""
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
    write_out(ServerOptions(url, api_key), out, lambda client, file: _copy(client, query, file))


def write_out(
    target: ServerOptions, out: str, write: Callable[[Client, BinaryIO], Awaitable[int]]
) -> None:
    """Copy from the server to standard output or to a file."""
    if out == "-":
        with_client(target, lambda client: write(client, sys.stdout.buffer))
        return
    path = Path(out)
    size = with_client(
        target, lambda client: _write_atomically(path, lambda file: write(client, file))
    )
    note(f"{out}: {size} bytes")


async def _write_atomically(path: Path, write: Callable[[BinaryIO], Awaitable[int]]) -> int:
    """Write to a temporary file, and rename it when it is complete."""
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
