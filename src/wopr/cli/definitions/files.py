"""Commands that send definition files to the server and report a result for each file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from wopr.api.errors import HostError
from wopr.api.text import is_plain
from wopr.cli.client import cli_error, with_client
from wopr.cli.errors import CliError, ExitCode, faults
from wopr.cli.options import ServerOptions
from wopr.cli.output import print_json_value, print_line
from wopr.protocol.documents import JsonObject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wopr.api.client import Client

FilesArgument: TypeAlias = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="JSON or YAML files.")
]


def yaml_text(document: JsonObject) -> str:
    """Return a document as YAML that is safe for a terminal."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    if is_plain(text):
        return text
    # Control characters are shown as escape sequences.
    escaped: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=100)
    return escaped


def process_files(
    files: list[Path],
    target: ServerOptions,
    process: Callable[[Client, JsonObject], Awaitable[JsonObject]],
    *,
    as_json: bool,
    done: str,
) -> None:
    """Process every file, also after a failure, and exit with the code of the first failure.

    A workflow is processed after the workflows that it starts.
    """

    async def process_all(client: Client) -> dict[Path, JsonObject | CliError]:
        ordered = sort_children_first(files)
        return {path: await _process_file(path, client, process) for path in ordered}

    outcomes = with_client(target, process_all)
    results = [(path, outcomes[path]) for path in files]
    if as_json:
        print_json_value({"results": [_result(path, outcome) for path, outcome in results]})
    else:
        for path, outcome in results:
            _print_outcome(path, outcome, done)
    failures = [outcome for _, outcome in results if isinstance(outcome, CliError)]
    raise typer.Exit(failures[0].exit_code if failures else ExitCode.OK)


def sort_children_first(files: list[Path]) -> list[Path]:
    """Order files so that a workflow comes after those that it starts, except in a cycle."""
    from graphlib import CycleError, TopologicalSorter

    from wopr.runs.definitions.child_workflows import child_workflows

    documents = {path: document for path in files if (document := _load_or_none(path)) is not None}
    by_id = {document.get("id"): path for path, document in documents.items()}
    sorter = TopologicalSorter(dict.fromkeys(files, ()))
    for path, document in documents.items():
        children = {by_id.get(child, path) for _, child in child_workflows(document)}
        sorter.add(path, *(children - {path}))
    try:
        return list(sorter.static_order())
    except CycleError:
        return files


def workflow_ids(files: list[Path]) -> list[str]:
    """Return the ids of the definitions in the files that can be read."""
    documents = [_load_or_none(path) for path in files]
    return [str(document["id"]) for document in documents if document and "id" in document]


def _load_or_none(path: Path) -> JsonObject | None:
    from wopr.runs.definitions.files import DefinitionUnreadable, load_definition

    try:
        return load_definition(path)
    except DefinitionUnreadable:
        return None


async def _process_file(
    path: Path, client: Client, process: Callable[[Client, JsonObject], Awaitable[JsonObject]]
) -> JsonObject | CliError:
    from wopr.runs.definitions.files import DefinitionUnreadable, load_definition

    try:
        return await process(client, load_definition(path))
    except DefinitionUnreadable as fault:
        where = "" if fault.line is None else f"line {fault.line}"
        return CliError(
            "the definition cannot be read",
            ExitCode.USAGE,
            code="validation_error",
            details={"errors": [{"path": where, "message": fault.reason}]},
        )
    except HostError as error:
        refusal = cli_error(error, has_key=client.has_key)
        if refusal.exit_code in (ExitCode.DENIED, ExitCode.UNAVAILABLE):
            raise
        return refusal
    except CliError as refusal:
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
        for warning in faults({"errors": outcome.get("warnings")}):
            print_line(f"  warning: {warning}")
        return
    print_line(f"{path}: {outcome.message}")
    for fault in faults(outcome.details):
        print_line(f"  {fault}")
