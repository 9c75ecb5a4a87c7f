"""`wopr workflows`: list, add, check and show definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wopr.cli.conversation import ask
from wopr.cli.documents import WorkflowListItem
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.files import FilesArgument, each_file, workflow_ids, yaml_text
from wopr.cli.options import AllOption, JsonOption, KeyOption, LimitOption, Target, UrlOption
from wopr.cli.output import Cells, print_json
from wopr.cli.paging import collect, print_collected
from wopr.protocol.documents import Json, JsonObject

if TYPE_CHECKING:
    from wopr.cli.connection import Client

app = typer.Typer(help="List, add, check and show workflow definitions.", no_args_is_help=True)


@app.command("list")
@command
def list_workflows(
    limit: LimitOption = 50,
    every: AllOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the registered workflows."""
    wanted = None if every else limit
    found = ask(Target(url, api_key), lambda client: collect(client.workflows, {}, wanted))
    print_collected(found, ("WORKFLOW", "VERSION", "NAME", "REGISTERED"), _row, as_json=as_json)


@app.command()
@command
def add(
    files: FilesArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register definitions; a new version stands beside the old and runs from then on.

    They are registered as one batch: a workflow may start another one of the same command.
    """
    alongside = workflow_ids(files)

    async def register(client: Client, definition: JsonObject) -> JsonObject:
        stored = (await client.add_workflow(definition, alongside)).document
        return _named(stored) | _warned(stored.get("warnings"))

    each_file(files, Target(url, api_key), register, as_json=as_json, done="added")


@app.command()
@command
def check(
    files: FilesArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the server whether definitions are valid, without registering them.

    They are checked as one batch: a workflow may start another one of the same command.
    """
    alongside = workflow_ids(files)

    async def validate(client: Client, definition: JsonObject) -> JsonObject:
        verdict = (await client.check_workflow(definition, alongside)).document
        if not verdict.valid:
            raise CliError(
                "not a valid workflow",
                ExitCode.USAGE,
                code="validation_error",
                details={
                    "errors": [
                        {"path": fault.path, "message": fault.message} for fault in verdict.errors
                    ]
                },
            )
        return _named(definition) | _warned(msgspec.to_builtins(verdict.warnings))

    each_file(files, Target(url, api_key), validate, as_json=as_json, done="valid")


@app.command()
@command
def show(
    workflow_id: Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")],
    version: Annotated[str | None, typer.Option(help="That version; default the newest.")] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML; the default.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a definition as it was registered."""
    if as_json and as_yaml:
        raise typer.BadParameter("give --yaml or --json, not both", param_hint="--yaml")
    answer = ask(Target(url, api_key), lambda client: client.workflow(workflow_id, version))
    if as_json:
        print_json(answer.body)
    else:
        typer.echo(yaml_text(answer.document), nl=False)


def _named(definition: JsonObject) -> JsonObject:
    return {"id": definition.get("id"), "version": definition.get("version")}


def _warned(warnings: Json) -> JsonObject:
    return {"warnings": warnings} if warnings else {}


def _row(item: WorkflowListItem) -> Cells:
    return (item.id, item.version, item.name or "", item.registered_at or "")
