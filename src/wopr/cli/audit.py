"""`wopr audit`: verify the audit log, on the database, on a copy of it or on files of a sink."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode, exit_code_of_status
from wopr.cli.local_store import store_options
from wopr.cli.options import DbOption, JsonOption
from wopr.cli.output import print_json_value, print_line
from wopr.cli.paths import database_url
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.runtime.audit_verifying import Verdict

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
    """Walk the whole audit log: every entry, every checkpoint, every signature."""
    if copy is not None and file:
        raise typer.BadParameter("cannot be combined with --copy", param_hint="--file")
    start, verdict = _verify(db, copy, file or [])
    report = _report(start, verdict, public_key)
    if as_json:
        print_json_value(report)
    else:
        _print(report)
    if not report["valid"]:
        raise typer.Exit(ExitCode.FAILED)


def _verify(db: str | None, copy: Path | None, files: list[Path]) -> tuple[int, Verdict]:
    """The first entry that could be verified, and what was found from there on."""
    import anyio

    from wopr.runtime.audit_files import AuditFiles
    from wopr.runtime.audit_verifying import verify as walk
    from wopr.store.open import open_audit, open_audit_copy

    async def read() -> tuple[int, Verdict]:
        if files:
            with closing(AuditFiles(files)) as log:
                # Without the first entries the walk begins at the first signed root.
                start = log.first_checkpoint + 1 if log.first else 0
                end = max(await log.audit_head(), await log.signed_head())
                return start, await walk(log, start, end)
        url = database_url(db)
        opened = open_audit_copy(copy) if copy else open_audit(url, store_options(url))
        async with opened as log:
            return 0, await walk(log, 0, max(await log.audit_head(), await log.signed_head()))

    try:
        return anyio.run(read)
    except WoprError as fault:
        raise CliError(
            f"the audit log cannot be read: {fault.message}",
            exit_code_of_status(fault.status),
            code=fault.code,
            hint="name the database of a host with --db, a copy of it with --copy, or files of an "
            "audit sink with --file",
        ) from None


def _report(start: int, verdict: Verdict, public_key: str | None) -> JsonObject:
    newest = verdict.checkpoints[-1] if verdict.checkpoints else None
    findings: list[JsonObject] = [
        {"kind": each.kind, "atSequence": each.at, "message": each.message}
        for each in verdict.findings
    ]
    if public_key is not None and (newest is None or newest.public_key != public_key):
        signer = "there is no checkpoint" if newest is None else "another key signed it"
        message = f"the newest checkpoint is not signed by the given key: {signer}"
        at = -1 if newest is None else newest.at_sequence
        findings.append({"kind": "checkpoint", "atSequence": at, "message": message})
    return {
        "valid": not findings,
        "from": start,
        "entries": verdict.entries,
        "checkpoints": len(verdict.checkpoints),
        "signedUpTo": -1 if newest is None else newest.at_sequence,
        "publicKeys": list(dict.fromkeys(row.public_key for row in verdict.checkpoints)),
        "findings": findings,
    }


def _print(report: JsonObject) -> None:
    if report["from"]:
        print_line(f"the files begin later: verified from entry {report['from']} on")
    print_line(f"entries: {report['entries']}, checkpoints: {report['checkpoints']}")
    if report["checkpoints"]:
        print_line(f"signed up to entry {report['signedUpTo']}")
    elif report["entries"]:
        print_line("no checkpoint: the entries are chained, and none of them is signed")
    for key in report["publicKeys"]:
        print_line(f"signed by {key}")
    for finding in report["findings"]:
        print_line(finding["message"])
    print_line("the audit log is whole" if report["valid"] else "the audit log was changed")
