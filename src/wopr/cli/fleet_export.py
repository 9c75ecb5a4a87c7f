"""`wopr fleet export`: runs of a server as KAHN lines, in one file or as an archive."""

from __future__ import annotations

import io
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from wopr.cli.conversation import ask
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.export import OutOption, write_out
from wopr.cli.filters import (
    SinceOption,
    StatusOption,
    TagOption,
    UntilOption,
    WorkflowOption,
    run_query,
)
from wopr.cli.options import KeyOption, Target, UrlOption
from wopr.cli.output import note
from wopr.cli.paging import collect

if TYPE_CHECKING:
    from wopr.cli.connection import Client


@command
def export(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN_ID...]", help="These runs; without any, all that match."),
    ] = None,
    out: OutOption = "-",
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="DIR", help="Write an archive here instead."),
    ] = None,
    status: StatusOption = None,
    workflow: WorkflowOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Export runs as KAHN lines: what their agents did, how they ended, what was said of them.

    A run that was pushed comes out exactly as it went in. An archive that holds a run already gets
    only the lines that are new; a run without agents has no lines.
    """
    query = run_query(status=status, workflow=workflow, tag=tag, since=since, until=until)
    if run_ids and query:
        raise CliError("give runs or filters, not both", ExitCode.USAGE, code="validation_error")
    target = Target(url, api_key)

    async def to_file(client: Client, file: BinaryIO) -> int:
        return await _write_lines(client, await _names(client, run_ids, query), file)

    if archive is not None:
        where = archive
        count = ask(target, lambda client: _write_archive(client, run_ids, query, where))
        note(f"{where}: {count} runs")
    else:
        write_out(target, out, to_file)


async def _names(client: Client, run_ids: list[str] | None, query: dict[str, str]) -> list[str]:
    """The runs to export: those that were named, or all that the filters let through."""
    if run_ids:
        return run_ids
    return [run.run_id for run in (await collect(client.runs, query, None)).items]


async def _write_lines(client: Client, run_ids: list[str], file: BinaryIO) -> int:
    size = 0
    for run_id in run_ids:
        async with aclosing(client.transitions(run_id)) as pieces:
            async for piece in pieces:
                size += file.write(piece)
    file.flush()
    return size


async def _write_archive(
    client: Client, run_ids: list[str] | None, query: dict[str, str], archive: Path
) -> int:
    from wopr.fleet.archive import rebuild_index

    count = 0
    for run_id in await _names(client, run_ids, query):
        held = io.BytesIO()
        await _write_lines(client, [run_id], held)
        count += _keep(archive, _lines(held.getvalue()))
    if count:
        rebuild_index(archive)
    return count


def _lines(body: bytes) -> list[bytes]:
    from wopr.fleet.lines import split_lines

    return [line for _, line in split_lines(body)]


def _keep(archive: Path, lines: list[bytes]) -> bool:
    """Write a run into the archive, behind what is there of it; False when it has no lines."""
    from wopr.fleet.archive import log_path, write_run
    from wopr.fleet.reading import decode_line

    if not lines:
        return False
    run_id = decode_line(lines[0]).event.run_id
    path = log_path(archive, run_id)
    held = _lines(path.read_bytes()) if path.exists() else []
    if lines[: len(held)] != held:
        message = f"{path} holds another history of this run; a log is never written anew"
        raise CliError(message, ExitCode.CONFLICT, code="would_rewrite")
    write_run(archive, run_id, lines, held=len(held))
    return True
