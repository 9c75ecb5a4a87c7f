"""`wopr fleet export`: runs of a server as KAHN lines, in one file or as an archive."""

from __future__ import annotations

import io
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from wopr.cli.client import collect, with_client
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.options import (
    KeyOption,
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
from wopr.cli.runs.export import OutOption, write_out

if TYPE_CHECKING:
    from wopr.api.client import Client


@command
def export(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN_ID...]", help="The runs. Default: all runs that match the filters."
        ),
    ] = None,
    out: OutOption = "-",
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", metavar="DIR", help="Write an archive into this directory instead."
        ),
    ] = None,
    status: StatusOption = None,
    workflow: WorkflowOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Export runs as KAHN lines: the work of their agents, their results and their annotations.

    A pushed run is exported unchanged. If an archive already has a run, only new lines are added. A
    run without agents has no lines.
    """
    query = run_query(status=status, workflow=workflow, tag=tag, since=since, until=until)
    if run_ids and query:
        raise CliError(
            "RUN_ID cannot be combined with filters", ExitCode.USAGE, code="validation_error"
        )
    target = ServerOptions(url, api_key)

    async def to_file(client: Client, file: BinaryIO) -> int:
        return await _write_lines(client, await _run_ids(client, run_ids, query), file)

    if archive is not None:
        where = archive
        count = with_client(target, lambda client: _write_archive(client, run_ids, query, where))
        note(f"{where}: {count} runs")
    else:
        write_out(target, out, to_file)


async def _run_ids(client: Client, run_ids: list[str] | None, query: dict[str, str]) -> list[str]:
    """Return the runs to export: the named ones, or all that match the filters."""
    if run_ids:
        return run_ids
    return [run.run_id for run in (await collect(client.runs, query, None)).items]


async def _write_lines(client: Client, run_ids: list[str], file: BinaryIO) -> int:
    size = 0
    for run_id in run_ids:
        async with aclosing(client.transitions(run_id)) as chunks:
            async for chunk in chunks:
                size += file.write(chunk)
    file.flush()
    return size


async def _write_archive(
    client: Client, run_ids: list[str] | None, query: dict[str, str], archive: Path
) -> int:
    from wopr.kahn.archive import rebuild_index

    count = 0
    for run_id in await _run_ids(client, run_ids, query):
        buffer = io.BytesIO()
        await _write_lines(client, [run_id], buffer)
        count += _add_to_archive(archive, _lines(buffer.getvalue()))
    if count:
        rebuild_index(archive)
    return count


def _lines(body: bytes) -> list[bytes]:
    from wopr.kahn.lines import split_lines

    return [line for _, line in split_lines(body)]


def _add_to_archive(archive: Path, lines: list[bytes]) -> bool:
    """Append the new lines of a run to the archive. Return False if the run has no lines."""
    from wopr.kahn.archive import log_path, write_run
    from wopr.kahn.lines import decode_line

    if not lines:
        return False
    run_id = decode_line(lines[0]).event.run_id
    path = log_path(archive, run_id)
    stored = _lines(path.read_bytes()) if path.exists() else []
    if lines[: len(stored)] != stored:
        message = f"{path} has a different history of this run; a log is never overwritten"
        raise CliError(message, ExitCode.CONFLICT, code="would_rewrite")
    write_run(archive, run_id, lines, existing=len(stored))
    return True
