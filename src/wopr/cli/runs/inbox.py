"""`wopr inbox`: list, show and answer questions to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from wopr.api.text import plain
from wopr.cli.client import Collected, collect, print_collected, with_client
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.options import (
    AllOption,
    JsonOption,
    KeyOption,
    LimitOption,
    ServerOptions,
    UrlOption,
    WorkflowOption,
    repeatable_choice,
)
from wopr.cli.output import Cells, print_block, print_json, print_line, print_table
from wopr.cli.values import parse_assignments, parse_json, parse_value
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.interrupts import DATA_TYPES, InboxItem, ResolveInterrupt, is_vendor_kind

if TYPE_CHECKING:
    from wopr.api.client import Client

app = typer.Typer(help="List, show and answer questions to people.", no_args_is_help=True)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node that waits.")]
_VENDOR_KIND_TEXT: Final = "a custom kind of the host, such as x-host-acme-review"
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


@app.command("list")
@command
def list_inbox(
    kind: Annotated[
        list[str] | None, repeatable_choice("--kind", DATA_TYPES, is_vendor_kind, _VENDOR_KIND_TEXT)
    ] = None,
    workflow: WorkflowOption = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    limit: LimitOption = 50,
    every: AllOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List open questions, newest first."""
    filters = {"kind": ",".join(kind or []), "workflowId": workflow, "runId": run}
    query = {name: value for name, value in filters.items() if value}
    wanted = None if every else limit
    found = with_client(
        ServerOptions(url, api_key), lambda client: collect(client.inbox, query, wanted)
    )
    columns = ("RUN", "NODE", "KIND", "AGE", "EXPIRES", "ASKED BY", "QUESTION")
    print_collected(found, columns, _row, as_json=as_json)


@app.command()
@command
def show(
    run_id: RunArgument,
    node_id: NodeArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the question of a node, and the effect of each answer."""

    async def read(client: Client) -> Collected[InboxItem]:
        return await collect(client.inbox, {"runId": run_id}, None)

    found = with_client(ServerOptions(url, api_key), read)
    position = next((n for n, item in enumerate(found.items) if item.node_id == node_id), None)
    if position is None:
        raise CliError(
            f"node {node_id} of run {run_id} does not wait for an answer",
            ExitCode.NOT_FOUND,
            code="interrupt_not_found",
            hint=f"see the waiting nodes with `wopr inbox list --run {run_id}`",
        )
    if as_json:
        print_json(bytes(found.bodies[position]))
    else:
        _print_item(found.items[position])


@app.command()
@command
def answer(
    run_id: RunArgument,
    node_id: NodeArgument,
    accept: Annotated[bool, typer.Option("--accept", help="Accept, or ratify a decision.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Reject.")] = False,
    answers: Annotated[
        list[str] | None,
        typer.Option("--answer", metavar="QUESTION=VALUE", help="Answer a question; repeatable."),
    ] = None,
    decision: Annotated[
        str | None, typer.Option(metavar="JSON", help="Replace the agent's decision with this one.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Any other answer: JSON, @file, or - for stdin."),
    ] = None,
    feedback: Annotated[
        str | None,
        typer.Option(help="The reason for --accept or --reject. Without these, request changes."),
    ] = None,
    interrupt: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Answer only this interrupt, and not a newer one of the node."
        ),
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a node that waits, with exactly one answer."""
    given: dict[str, Json] = {}
    if accept:
        given["--accept"] = _action("accept", feedback)
    if reject:
        given["--reject"] = _action("reject", feedback)
    if answers:
        given["--answer"] = {"answers": parse_assignments(answers, "--answer")}
    if decision is not None:
        given["--decision"] = {"decision": _decision(decision)}
    if value is not None:
        given["--value"] = parse_json(value, "--value")
    if feedback is not None and not (accept or reject):
        given["--feedback"] = _refinement(feedback)
    body = ResolveInterrupt(resume_value=_single_answer(given))
    response = with_client(
        ServerOptions(url, api_key), lambda client: client.resolve(run_id, node_id, body, interrupt)
    )
    if as_json:
        print_json(response.body)
    else:
        print_line(f"run {response.document.run_id} {response.document.status}")


def _action(action: str, feedback: str | None) -> JsonObject:
    answer: JsonObject = {"action": action}
    return answer if feedback is None else answer | {"feedback": feedback}


def _refinement(text: str) -> JsonObject:
    return {"action": "refine", "refineFeedback": {"scope": "whole", "text": text}}


def _decision(raw: str) -> Json:
    is_reference = raw == "-" or raw.startswith("@")
    return parse_json(raw, "--decision") if is_reference else parse_value(raw)


def _single_answer(given: dict[str, Json]) -> Json:
    if len(given) != 1:
        raise typer.BadParameter(
            "use exactly one of --accept, --reject, --answer, --decision, --value "
            "and --feedback; --feedback can also be combined with --accept or --reject"
        )
    [value] = given.values()
    return value


def _row(item: InboxItem) -> Cells:
    asker = item.asked_by.agent_id or item.workflow_id
    return (
        item.run_id,
        item.node_id,
        item.kind,
        _age(item),
        item.expires_at or "",
        asker,
        item.question,
    )


def _age(item: InboxItem) -> str:
    milliseconds = item.age_ms or 0
    for unit, size in _UNITS:
        if milliseconds >= size:
            return f"{milliseconds // size}{unit}"
    return "now"


def _print_item(item: InboxItem) -> None:
    print_line(Text.assemble((plain(item.question), "bold")))
    for name, value in _facts(item):
        print_line(Text.assemble((f"  {name:<12}", "dim"), plain(value)))
    print_table(("ANSWER", "EFFECT"), item.answers.items())
    print_block("details", item.data)


def _facts(item: InboxItem) -> list[tuple[str, str]]:
    votes = item.votes
    asker = item.asked_by
    facts: list[tuple[str, str | Unset]] = [
        ("kind", item.kind),
        ("reason", item.reason),
        ("run", item.run_id),
        ("node", item.node_id),
        ("workflow", item.workflow_id),
        ("agent", asker.agent_id),
        ("started by", asker.started_by),
        ("asked", f"{item.requested_at} ({_age(item)})"),
        ("expires", item.expires_at),
        ("votes", "" if isinstance(votes, Unset) else f"{votes.granted} of {votes.required}"),
        ("interrupt", item.interrupt_id),
    ]
    return [(name, value) for name, value in facts if value]
