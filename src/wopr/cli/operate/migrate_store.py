"""`wopr migrate-store`: move a SQLite database into PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wopr.cli.database import store_options
from wopr.cli.errors import CliError, ExitCode, command, exit_code_of_status
from wopr.cli.options import JsonOption
from wopr.cli.output import error_console, note, print_json_value, print_line
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.services.audit.verify import AuditReport
    from wopr.store.migrate.copy import CopyReport, DatabaseCopy


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

    Stop the hosts of both databases first. After an interruption, run the command again.
    """
    try:
        report, audit, was_complete = _move(source, target, is_silent=as_json)
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    _require_same(report, audit)
    if as_json:
        print_json_value({"rows": report.rows, "auditEntries": audit.entries})
        return
    done = "already moved" if was_complete else "moved"
    print_line(f"{done} {sum(report.rows.values())} rows of {len(report.rows)} tables")
    print_line(f"the audit log is valid: {audit.entries} entries")
    note(
        "Start the hosts with the same data directory, or with its host.key in WOPR_HOST_KEY "
        "(base64)."
    )


def _move(source: str, target: str, *, is_silent: bool) -> tuple[CopyReport, AuditReport, bool]:
    import anyio

    from wopr.store.open import missing_driver_error, sqlite_path

    try:
        from wopr.store.migrate.copy import open_copy
        from wopr.store.postgres.pool import parse_address
    except ModuleNotFoundError as missing:
        raise missing_driver_error(missing) from None
    file = Path(sqlite_path(source))
    address = parse_address(target)
    # Creates the tables. Fails early if this login is not allowed to.
    anyio.run(_open_and_verify, target, False)
    with open_copy(file, address) as copy:
        if not copy.is_complete:
            with _progress(copy, is_silent=is_silent) as advance:
                copy.copy(advance)
        report = copy.compare()
        audit = anyio.run(_open_and_verify, target, True)
        if not copy.is_complete and not report.differing and audit.is_valid:
            copy.finish()
    return report, audit, copy.is_complete


async def _open_and_verify(target: str, is_filled: bool) -> AuditReport:
    from wopr.services.audit.verify import AuditReport, verify_audit_log
    from wopr.store.postgres import PostgresStore

    store = await PostgresStore.open(target, store_options(target), is_copy_target=True)
    try:
        if not is_filled:
            return AuditReport()
        return await verify_audit_log(
            store, 0, max(await store.audit_head(), await store.signed_head())
        )
    finally:
        await store.close()


def _require_same(report: CopyReport, audit: AuditReport) -> None:
    """Raise `CliError` if the databases differ. Hosts then cannot open the target."""
    faults = [
        f"{name} has {target_rows} rows, not {source_rows}"
        for name, (source_rows, target_rows) in report.differing.items()
    ]
    faults += [finding.message for finding in audit.findings]
    if faults:
        raise CliError(
            "the target differs from the source, so no host will open it",
            ExitCode.FAILED,
            hint="the source was changed during the copy or was damaged before: start again with a "
            "new database",
            details={"errors": [{"message": fault} for fault in faults]},
        )


@contextmanager
def _progress(
    copy: DatabaseCopy, *, is_silent: bool
) -> Generator[Callable[[str, int], None], None, None]:
    """Show a progress bar on a terminal. Yield the function that advances it."""
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
        task = bar.add_task("moving", total=copy.total, completed=copy.copied_rows)

        def advance(name: str, rows: int) -> None:
            bar.update(task, advance=rows, description=name)

        yield advance
