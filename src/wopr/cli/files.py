"""Files that a command sends to the server: each is treated, faulty or not, and each is reported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from wopr.cli.conversation import ask
from wopr.cli.errors import CliError, faults
from wopr.cli.exit_codes import ExitCode
from wopr.cli.options import Target
from wopr.cli.output import is_plain, print_json_value, print_line
from wopr.protocol.documents import JsonObject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wopr.cli.connection import Client

FilesArgument: TypeAlias = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="JSON or YAML files.")
]


def yaml_text(document: JsonObject) -> str:
    """Write a document as YAML that cannot upset a terminal."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    if is_plain(text):
        return text
    # Escaped, such characters reach the reader as what they are and the terminal as letters.
    escaped: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=100)
    return escaped


def each_file(
    files: list[Path],
    target: Target,
    treat: Callable[[Client, JsonObject], Awaitable[JsonObject]],
    *,
    as_json: bool,
    done: str,
) -> None:
    """Treat every file, faulty or not, then exit with the first failure's code.

    A workflow that another one starts is treated before it.
    """

    async def treat_all(client: Client) -> dict[Path, JsonObject | CliError]:
        ordered = children_first(files)
        return {path: await _treat_file(path, client, treat) for path in ordered}

    outcomes = ask(target, treat_all)
    results = [(path, outcomes[path]) for path in files]
    if as_json:
        print_json_value({"results": [_result(path, outcome) for path, outcome in results]})
    else:
        for path, outcome in results:
            _print_outcome(path, outcome, done)
    failures = [outcome for _, outcome in results if isinstance(outcome, CliError)]
    raise typer.Exit(failures[0].exit_code if failures else ExitCode.OK)


def children_first(files: list[Path]) -> list[Path]:
    """Order files so that a workflow comes after those that it starts, where that is possible."""
    from graphlib import CycleError, TopologicalSorter

    from wopr.runtime.child_workflows import child_workflows

    documents = {path: document for path in files if (document := _readable(path)) is not None}
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
    """The ids of the definitions in these files, as far as they can be read."""
    documents = [_readable(path) for path in files]
    return [str(document["id"]) for document in documents if document and "id" in document]


def _readable(path: Path) -> JsonObject | None:
    from wopr.runtime.definition_files import DefinitionUnreadable, load_definition

    try:
        return load_definition(path)
    except DefinitionUnreadable:
        return None


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
        for warning in faults({"errors": outcome.get("warnings")}):
            print_line(f"  warning: {warning}")
        return
    print_line(f"{path}: {outcome.message}")
    for fault in faults(outcome.details):
        print_line(f"  {fault}")
