"""`wopr workflows`: list, add, check and show definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wopr.api.documents import WorkflowListItem
from wopr.cli.client import collect, print_collected, with_client
from wopr.cli.definitions.files import FilesArgument, process_files, workflow_ids, yaml_text
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.options import AllOption, JsonOption, KeyOption, LimitOption, ServerOptions, UrlOption
from wopr.cli.output import Cells, print_json
from wopr.protocol.documents import Json, JsonObject

if TYPE_CHECKING:
    from wopr.api.client import Client

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
    found = with_client(
        ServerOptions(url, api_key), lambda client: collect(client.workflows, {}, wanted)
    )
    print_collected(found, ("WORKFLOW", "VERSION", "NAME", "REGISTERED"), _row, as_json=as_json)


@app.command()
@command
def add(
    files: FilesArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register definitions. New runs use the new version of a workflow.

    The definitions are registered as one batch, so a workflow can start another workflow of the
    same command.
    """
    alongside = workflow_ids(files)

    async def register(client: Client, definition: JsonObject) -> JsonObject:
        stored = (await client.add_workflow(definition, alongside)).document
        return _id_and_version(stored) | _warnings(stored.get("warnings"))

    process_files(files, ServerOptions(url, api_key), register, as_json=as_json, done="added")


@app.command()
@command
def check(
    files: FilesArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check definitions on the server without registering them.

    The definitions are checked as one batch, so a workflow can start another workflow of the same
    command.
    """
    alongside = workflow_ids(files)

    async def validate(client: Client, definition: JsonObject) -> JsonObject:
        report = (await client.validate_workflow(definition, alongside)).document
        if not report.valid:
            raise CliError(
                "not a valid workflow",
                ExitCode.USAGE,
                code="validation_error",
                details={
                    "errors": [
                        {"path": fault.path, "message": fault.message} for fault in report.errors
                    ]
                },
            )
        return _id_and_version(definition) | _warnings(msgspec.to_builtins(report.warnings))

    process_files(files, ServerOptions(url, api_key), validate, as_json=as_json, done="valid")


@app.command()
@command
def show(
    workflow_id: Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")],
    version: Annotated[str | None, typer.Option(help="The version. Default: the newest.")] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print YAML; the default.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a definition as it was registered."""
    if as_json and as_yaml:
        raise typer.BadParameter("--yaml cannot be combined with --json", param_hint="--yaml")
    response = with_client(
        ServerOptions(url, api_key), lambda client: client.workflow(workflow_id, version)
    )
    if as_json:
        print_json(response.body)
    else:
        typer.echo(yaml_text(response.document), nl=False)


def _id_and_version(definition: JsonObject) -> JsonObject:
    return {"id": definition.get("id"), "version": definition.get("version")}


def _warnings(warnings: Json) -> JsonObject:
    return {"warnings": warnings} if warnings else {}


def _row(item: WorkflowListItem) -> Cells:
    return (item.id, item.version, item.name or "", item.registered_at or "")
