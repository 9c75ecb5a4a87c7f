"""`wopr fleet`: check, push and follow KAHN logs, read the fleet, make one for trying."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.text import Text

from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.fleet_export import export
from wopr.cli.fleet_push import PATIENCE, push_logs, report, send_logs
from wopr.cli.fleet_redact import redact
from wopr.cli.fleet_tables import agents, audits, runs
from wopr.cli.fleet_tail import tail
from wopr.cli.options import JsonOption, KeyOption, Target, UrlOption
from wopr.cli.output import note, plain, print_json_line, print_json_value, print_line
from wopr.protocol.documents import encode

if TYPE_CHECKING:
    from wopr.fleet.findings import Finding

app = typer.Typer(
    help="Check, push and follow KAHN logs, read the fleet, make one for trying.",
    no_args_is_help=True,
)
app.command("push")(push_logs)
app.command()(tail)
app.command()(export)
app.command()(agents)
app.command()(runs)
app.command()(audits)
app.command()(redact)

Family = Literal["agent", "ci"]
FamilyArgument = Annotated[Family, typer.Argument(help="The family of events.")]
_EMITTERS: dict[Family, str] = {"agent": "kahn_agent_emit.py", "ci": "kahn_emit.py"}
_STYLES = {"error": "bold red", "warn": "yellow", "info": "dim"}


@app.command()
@command
def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Logs; - is standard input.")
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for errors.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check KAHN logs, line by line; with errors the exit code is 1."""
    from wopr.fleet.checker import check as check_log

    counts = {"error": 0, "warn": 0, "info": 0}
    for path in files:
        with _opened(path) as lines:
            for found in check_log(lines):
                shown = _strictly(found) if strict else found
                counts[shown.level] += 1
                _print_finding(path, shown, as_json=as_json)
    if not as_json:
        note(f"{counts['error']} errors, {counts['warn']} warnings, {counts['info']} notes")
    raise typer.Exit(ExitCode.FAILED if counts["error"] else ExitCode.OK)


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    if str(path) == "-":
        yield typer.get_binary_stream("stdin")
        return
    try:
        file = path.open("rb")
    except OSError as fault:
        raise CliError(
            f"cannot read {path}: {fault.strerror}", ExitCode.USAGE, code="validation_error"
        ) from fault
    with file:
        yield file


def _strictly(found: Finding) -> Finding:
    return msgspec.structs.replace(found, level="error") if found.level == "warn" else found


def _print_finding(path: Path, found: Finding, *, as_json: bool) -> None:
    if as_json:
        print_json_line(encode({"file": str(path), **msgspec.structs.asdict(found)}))
        return
    where = f"{plain(path)}:{found.line}: "
    level = (found.level, _STYLES[found.level])
    print_line(Text.assemble(where, level, f" {found.code}: {plain(found.message)}"))


@app.command()
@command
def emitter(family: FamilyArgument) -> None:
    """Print the emitter of a family: one file for a producer to copy, standard library only."""
    from importlib.resources import files

    source = files("wopr.fleet.emitters").joinpath(_EMITTERS[family])
    typer.echo(source.read_text(encoding="utf-8"), nl=False)


@app.command()
@command
def schema(family: FamilyArgument) -> None:
    """Print the JSON Schema of a family's lines."""
    from wopr.fleet.schemas import AGENT_SCHEMA, CI_SCHEMA, export

    print_json_value(export()[AGENT_SCHEMA if family == "agent" else CI_SCHEMA])


@app.command()
@command
def demo(
    archive: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="The archive to write.")
    ] = Path(".kahn/archive"),
    days: Annotated[int, typer.Option(min=1, max=366, help="How many days of runs.")] = 14,
    seed: Annotated[int, typer.Option(help="Another seed gives another fleet.")] = 0,
    until: Annotated[
        datetime | None,
        typer.Option(help="The end of the last day, in UTC.", show_default="now"),
    ] = None,
    push: Annotated[
        bool, typer.Option("--push", help="Push it to a server, so that its fleet is not empty.")
    ] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive with three made-up agents, to try the checker and the views on."""
    from wopr.fleet.archive import log_path, rebuild_index, write_run
    from wopr.fleet.demo import demo_runs

    runs = list(demo_runs(until=until or datetime.now(UTC), days=days, seed=seed))
    taken = next((run for run in runs if log_path(archive, run.run_id).exists()), None)
    if taken is not None:
        message = f"{archive} holds a run {taken.run_id} already; a log is never written anew"
        raise CliError(message, ExitCode.CONFLICT, code="run_state_conflict")
    for run in runs:
        write_run(archive, run.run_id, run.lines)
    rebuild_index(archive)
    written = {"archive": str(archive), "runs": len(runs), "lines": sum(len(r.lines) for r in runs)}
    if as_json:
        print_json_value(written)
    else:
        print_line(f"{written['runs']} runs, {written['lines']} lines in {archive}")
    if push:
        sent = send_logs([archive], Target(url, api_key), PATIENCE, as_json=as_json)
        report(sent, as_json=as_json)
