"""`wopr audit`: verify the audit log in the database, in a copy, or in files of an audit sink."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.database import database_url, store_options
from wopr.cli.errors import CliError, ExitCode, command, exit_code_of_status
from wopr.cli.options import DbOption, JsonOption
from wopr.cli.output import print_json_value, print_line
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.services.audit.verify import AuditReport

app = typer.Typer(help="Verify the audit log.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Verify the audit log."""


@app.command()
@command
def verify(
    db: DbOption = None,
    copy: Annotated[
        Path | None,
        typer.Option(
            "--copy",
            help="A copy of the database file, instead of the database.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            help="A file of an audit sink, instead of the database; repeatable for rotated files.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    public_key: Annotated[
        str | None,
        typer.Option(
            "--public-key", help="The key that must have signed the newest checkpoint, as base64."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify the complete audit log: all entries, checkpoints and signatures."""
    if copy is not None and file:
        raise typer.BadParameter("cannot be combined with --copy", param_hint="--file")
    start, result = _verify(db, copy, file or [])
    report = _report(start, result, public_key)
    if as_json:
        print_json_value(report)
    else:
        _print(report)
    if not report["valid"]:
        raise typer.Exit(ExitCode.FAILED)


def _verify(db: str | None, copy: Path | None, files: list[Path]) -> tuple[int, AuditReport]:
    """Return the first entry that could be verified, and the result."""
    import anyio

    from wopr.services.audit.verify import AuditFiles, verify_audit_log
    from wopr.store.open import open_audit, open_audit_copy

    async def read() -> tuple[int, AuditReport]:
        if files:
            with closing(AuditFiles(files)) as log:
                # Without the first entries the check starts at the first signed root.
                start = log.first_checkpoint + 1 if log.first else 0
                end = max(await log.audit_head(), await log.signed_head())
                return start, await verify_audit_log(log, start, end)
        url = database_url(db)
        opened = open_audit_copy(copy) if copy else open_audit(url, store_options(url))
        async with opened as log:
            return 0, await verify_audit_log(
                log, 0, max(await log.audit_head(), await log.signed_head())
            )

    try:
        return anyio.run(read)
    except WoprError as fault:
        raise CliError(
            f"the audit log cannot be read: {fault.message}",
            exit_code_of_status(fault.status),
            code=fault.code,
            hint="set --db to the database of a host, --copy to a copy of the database, or --file "
            "to files of an audit sink",
        ) from None


def _report(start: int, result: AuditReport, public_key: str | None) -> JsonObject:
    newest = result.checkpoints[-1] if result.checkpoints else None
    findings: list[JsonObject] = [
        {"kind": each.kind, "atSequence": each.at, "message": each.message}
        for each in result.findings
    ]
    if public_key is not None and (newest is None or newest.public_key != public_key):
        signer = "there is no checkpoint" if newest is None else "another key signed it"
        message = f"the newest checkpoint is not signed by the given key: {signer}"
        at = -1 if newest is None else newest.at_sequence
        findings.append({"kind": "checkpoint", "atSequence": at, "message": message})
    return {
        "valid": not findings,
        "from": start,
        "entries": result.entries,
        "checkpoints": len(result.checkpoints),
        "signedUpTo": -1 if newest is None else newest.at_sequence,
        "publicKeys": list(dict.fromkeys(row.public_key for row in result.checkpoints)),
        "findings": findings,
    }


def _print(report: JsonObject) -> None:
    if report["from"]:
        print_line(f"the files begin later; verified from entry {report['from']}")
    print_line(f"entries: {report['entries']}, checkpoints: {report['checkpoints']}")
    if report["checkpoints"]:
        print_line(f"signed up to entry {report['signedUpTo']}")
    elif report["entries"]:
        print_line("no checkpoint: the entries are chained, but not signed")
    for key in report["publicKeys"]:
        print_line(f"signed by {key}")
    for finding in report["findings"]:
        print_line(finding["message"])
    print_line("the audit log is valid" if report["valid"] else "the audit log was changed")
