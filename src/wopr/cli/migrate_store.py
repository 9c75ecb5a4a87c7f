"""`wopr migrate-store`: move a SQLite database into PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode, exit_code_of_status
from wopr.cli.local_store import store_options
from wopr.cli.options import JsonOption
from wopr.cli.output import error_console, note, print_json_value, print_line
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.runtime.audit_verifying import Verdict
    from wopr.store.moving import Moving, Report


@command
def migrate_store(
    source: Annotated[
        str, typer.Option("--from", help="The database to read: sqlite:///file.", metavar="URL")
    ],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            envvar="WOPR_DB",
            metavar="URL",
            help="The empty database to fill, as its owner: postgresql://host/database. Prefer the "
            "variable for a URL with a password.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Move a SQLite database into an empty PostgreSQL database.

    Stop the hosts of both databases first. A move that was interrupted continues when the command
    is run again.
    """
    try:
        report, verdict, was_complete = _move(source, target, is_silent=as_json)
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    _require_same(report, verdict)
    if as_json:
        print_json_value({"rows": report.rows, "auditEntries": verdict.entries})
        return
    done = "already moved" if was_complete else "moved"
    print_line(f"{done} {sum(report.rows.values())} rows of {len(report.rows)} tables")
    print_line(f"the audit log is whole: {verdict.entries} entries")
    note(
        "Start the hosts with the same data directory, or with its host.key in WOPR_HOST_KEY "
        "(base64)."
    )


def _move(source: str, target: str, *, is_silent: bool) -> tuple[Report, Verdict, bool]:
    import anyio

    from wopr.store.open import sqlite_path, without_driver

    try:
        from wopr.store.moving import moving
        from wopr.store.postgres.address import address_of
    except ModuleNotFoundError as missing:
        raise without_driver(missing) from None
    file = Path(sqlite_path(source))
    address = address_of(target)
    # Makes the tables, and says so early when this login may not.
    anyio.run(_open_and_verify, target, False)
    with moving(file, address) as under_way:
        if not under_way.is_complete:
            with _progress(under_way, is_silent=is_silent) as moved:
                under_way.copy(moved)
        report = under_way.compare()
        verdict = anyio.run(_open_and_verify, target, True)
        if not under_way.is_complete and not report.differing and verdict.is_valid:
            under_way.finish()
    return report, verdict, under_way.is_complete


async def _open_and_verify(target: str, is_filled: bool) -> Verdict:
    from wopr.runtime.audit_verifying import Verdict, verify
    from wopr.store.postgres import PostgresStore

    store = await PostgresStore.open(target, store_options(target), is_filling=True)
    try:
        if not is_filled:
            return Verdict()
        return await verify(store, 0, max(await store.audit_head(), await store.signed_head()))
    finally:
        await store.close()


def _require_same(report: Report, verdict: Verdict) -> None:
    """Refuse to call it done when anything differs; the target then stays closed to hosts."""
    faults = [
        f"{name} has {there} rows, not {here}" for name, (here, there) in report.differing.items()
    ]
    faults += [finding.message for finding in verdict.findings]
    if faults:
        raise CliError(
            "the target is not what the source is, and no host will open it",
            ExitCode.FAILED,
            hint="the source was changed meanwhile, or damaged before: start again with a new "
            "database",
            details={"errors": [{"message": fault} for fault in faults]},
        )


@contextmanager
def _progress(
    under_way: Moving, *, is_silent: bool
) -> Generator[Callable[[str, int], None], None, None]:
    """A bar on a terminal; how to move it."""
    if is_silent or not sys.stderr.isatty():
        yield lambda _name, _rows: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=error_console(), transient=True) as bar:
        task = bar.add_task("moving", total=under_way.total, completed=under_way.moved)

        def moved(name: str, rows: int) -> None:
            bar.update(task, advance=rows, description=name)

        yield moved
