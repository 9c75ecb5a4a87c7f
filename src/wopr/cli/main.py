"""The `wopr` command."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from wopr.cli.definitions import agents, workflows
from wopr.cli.demo import command as demo
from wopr.cli.errors import exit_code_table
from wopr.cli.fleet import commands as fleet
from wopr.cli.operate import (
    audit,
    dev,
    doctor,
    encryption,
    keys,
    mcp,
    migrate_store,
    processes,
    quotas,
    secrets,
    serve,
)
from wopr.cli.runs import commands as runs
from wopr.cli.runs import export, feedback, forks, inbox, run
from wopr.version import __version__

app = typer.Typer(
    name="wopr",
    help="A durable host for OpenWOP v1: runs, agents and people on one event log.",
    epilog=exit_code_table(),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback with local variables would print keys.
    pretty_exceptions_show_locals=False,
)
app.command()(serve.serve)
app.command()(serve.worker)
app.command()(dev.dev)
app.command()(demo.demo)
app.command()(run.run)
forks.add_commands(runs.app)
app.add_typer(runs.app, name="runs")
app.add_typer(inbox.app, name="inbox")
app.add_typer(workflows.app, name="workflows")
app.add_typer(agents.app, name="agents")
app.add_typer(feedback.app, name="feedback")
app.command()(export.export)
app.add_typer(keys.app, name="keys")
app.add_typer(secrets.app, name="secrets")
app.add_typer(audit.app, name="audit")
app.add_typer(encryption.app, name="encryption")
app.add_typer(fleet.app, name="fleet")
app.command()(processes.processes)
app.command()(quotas.usage)
app.add_typer(quotas.app, name="quotas")
app.command()(mcp.mcp)
app.command()(doctor.doctor)
app.command()(migrate_store.migrate_store)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"wopr {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A durable host for OpenWOP v1: runs, agents and people on one event log."""


def main() -> None:
    """Run the command in argv."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the output encoding does not have are escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
