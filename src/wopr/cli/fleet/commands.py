"""`wopr fleet`: check, push and follow KAHN logs, and read the fleet."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.text import Text

from wopr.api.text import plain
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.fleet.export import export
from wopr.cli.fleet.push import PATIENCE, push_logs, report, send_logs
from wopr.cli.fleet.redact import redact
from wopr.cli.fleet.tables import agents, audits, runs
from wopr.cli.fleet.tail import tail
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import note, print_json_line, print_json_value, print_line
from wopr.protocol.documents import encode

if TYPE_CHECKING:
    from wopr.kahn.checker import Finding

app = typer.Typer(
    help="Check, push and follow KAHN logs, and read the fleet.",
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
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check KAHN logs line by line. The exit code is 1 if there are errors."""
    from wopr.kahn.checker import check as check_log

    counts = {"error": 0, "warn": 0, "info": 0}
    for path in files:
        with _open_log(path) as lines:
            for finding in check_log(lines):
                shown = _as_error(finding) if strict else finding
                counts[shown.level] += 1
                _print_finding(path, shown, as_json=as_json)
    if not as_json:
        note(f"{counts['error']} errors, {counts['warn']} warnings, {counts['info']} notes")
    raise typer.Exit(ExitCode.FAILED if counts["error"] else ExitCode.OK)


@contextmanager
def _open_log(path: Path) -> Generator[IO[bytes]]:
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


def _as_error(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, level="error") if finding.level == "warn" else finding


def _print_finding(path: Path, finding: Finding, *, as_json: bool) -> None:
    if as_json:
        print_json_line(encode({"file": str(path), **msgspec.structs.asdict(finding)}))
        return
    where = f"{plain(path)}:{finding.line}: "
    level = (finding.level, _STYLES[finding.level])
    print_line(Text.assemble(where, level, f" {finding.code}: {plain(finding.message)}"))


@app.command()
@command
def emitter(family: FamilyArgument) -> None:
    """Print the emitter of a family: one file that needs only the standard library."""
    from importlib.resources import files

    source = files("wopr.kahn.emitters").joinpath(_EMITTERS[family])
    typer.echo(source.read_text(encoding="utf-8"), nl=False)


@app.command()
@command
def schema(family: FamilyArgument) -> None:
    """Print the JSON Schema of a family's lines."""
    from wopr.kahn.events import AGENT_SCHEMA, CI_SCHEMA, export_schemas

    print_json_value(export_schemas()[AGENT_SCHEMA if family == "agent" else CI_SCHEMA])


@app.command()
@command
def demo(
    archive: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="The archive to write.")
    ] = Path(".kahn/archive"),
    days: Annotated[int, typer.Option(min=1, max=366, help="Number of days with runs.")] = 14,
    seed: Annotated[int, typer.Option(help="The seed of the random data.")] = 0,
    until: Annotated[
        datetime | None,
        typer.Option(help="The end of the last day, in UTC.", show_default="now"),
    ] = None,
    push: Annotated[
        bool, typer.Option("--push", help="Also push the archive to a server.")
    ] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive with demo data of three agents, to try the checks and the views."""
    from wopr.kahn.archive import log_path, rebuild_index, write_run
    from wopr.kahn.demo.generator import demo_runs

    runs = list(demo_runs(until=until or datetime.now(UTC), days=days, seed=seed))
    existing = next((run for run in runs if log_path(archive, run.run_id).exists()), None)
    if existing is not None:
        message = f"{archive} already has the run {existing.run_id}; a log is never overwritten"
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
        result = send_logs([archive], ServerOptions(url, api_key), PATIENCE, as_json=as_json)
        report(result, as_json=as_json)
