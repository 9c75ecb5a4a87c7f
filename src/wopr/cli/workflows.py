"""`wopr workflows`: list, add, check and show definitions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.conversation import ask
from wopr.cli.errors import CliError, command, faults
from wopr.cli.exit_codes import ExitCode
from wopr.cli.options import JsonOption, KeyOption, Target, UrlOption
from wopr.cli.output import (
    is_plain,
    note,
    print_json,
    print_json_value,
    print_line,
    print_table,
)
from wopr.cli.paging import collect
from wopr.protocol.documents import JsonObject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wopr.cli.connection import Client

app = typer.Typer(help="List, add, check and show workflow definitions.", no_args_is_help=True)

FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="JSON or YAML definitions.")
]


@app.command("list")
@command
def list_workflows(
    limit: Annotated[int, typer.Option(min=1, help="At most that many.")] = 50,
    every: Annotated[bool, typer.Option("--all", help="All of them, however many.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the registered workflows."""
    wanted = None if every else limit
    found = ask(Target(url, api_key), lambda client: collect(client.workflows, {}, wanted))
    if as_json:
        print_json_value(found.document())
        return
    print_table(
        ("WORKFLOW", "VERSION", "NAME", "REGISTERED"),
        (
            (item.id, item.version, item.name or "", item.registered_at or "")
            for item in found.items
        ),
    )
    if found.next_cursor is not None:
        note("there are more; use --limit or --all")


@app.command()
@command
def add(
    files: FilesArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register definitions; a new version stands beside the old and runs from then on."""

    async def register(client: Client, definition: JsonObject) -> JsonObject:
        stored = (await client.add_workflow(definition)).document
        return {"id": stored.get("id"), "version": stored.get("version")}

    _each_file(files, Target(url, api_key), register, as_json=as_json, done="added")


@app.command()
@command
def check(
    files: FilesArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the server whether definitions are valid, without registering them."""

    async def validate(client: Client, definition: JsonObject) -> JsonObject:
        verdict = (await client.check_workflow(definition)).document
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
        return {"id": definition.get("id"), "version": definition.get("version")}

    _each_file(files, Target(url, api_key), validate, as_json=as_json, done="valid")


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
        typer.echo(_yaml(answer.document), nl=False)


def _yaml(document: JsonObject) -> str:
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    if is_plain(text):
        return text
    # Escaped, such characters reach the reader as what they are and the terminal as letters.
    escaped: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=100)
    return escaped


def _each_file(
    files: list[Path],
    target: Target,
    treat: Callable[[Client, JsonObject], Awaitable[JsonObject]],
    *,
    as_json: bool,
    done: str,
) -> None:
    """Treat every file, faulty or not, then exit with the first failure's code."""

    async def treat_all(client: Client) -> list[JsonObject | CliError]:
        return [await _treat_file(path, client, treat) for path in files]

    results = list(zip(files, ask(target, treat_all), strict=True))
    if as_json:
        print_json_value({"results": [_result(path, outcome) for path, outcome in results]})
    else:
        for path, outcome in results:
            _print_outcome(path, outcome, done)
    failures = [outcome for _, outcome in results if isinstance(outcome, CliError)]
    raise typer.Exit(failures[0].exit_code if failures else ExitCode.OK)


async def _treat_file(
    path: Path, client: Client, treat: Callable[[Client, JsonObject], Awaitable[JsonObject]]
) -> JsonObject | CliError:
    from wopr.runtime.definition_files import DefinitionUnreadable, load_definition

    try:
        return await treat(client, load_definition(path))
    except DefinitionUnreadable as fault:
        where = "" if fault.line is None else f"line {fault.line}"
        return CliError(
            "not a readable definition",
            ExitCode.USAGE,
            code="validation_error",
            details={"errors": [{"path": where, "message": fault.reason}]},
        )
    except CliError as refusal:
        if refusal.exit_code in (ExitCode.DENIED, ExitCode.UNAVAILABLE):
            raise
        return refusal


def _result(path: Path, outcome: JsonObject | CliError) -> JsonObject:
    if not isinstance(outcome, CliError):
        return {"file": str(path), "ok": True, **outcome}
    error: JsonObject = {"error": outcome.code, "message": outcome.message}
    if outcome.details:
        error["details"] = outcome.details
    return {"file": str(path), "ok": False, **error}


def _print_outcome(path: Path, outcome: JsonObject | CliError, done: str) -> None:
    if not isinstance(outcome, CliError):
        print_line(f"{path}: {done} {outcome.get('id')} {outcome.get('version')}")
        return
    print_line(f"{path}: {outcome.message}")
    for fault in faults(outcome.details):
        print_line(f"  {fault}")
