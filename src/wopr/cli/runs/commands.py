"""`wopr runs`: list, show, follow and control runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.client import collect, print_collected, with_client
from wopr.cli.errors import ExitCode, command, exit_code_of_run
from wopr.cli.options import (
    AllOption,
    CorrectedOption,
    FlaggedOption,
    JsonOption,
    KeyOption,
    LabelOption,
    LimitOption,
    QuarantinedOption,
    RatedOption,
    ServerOptions,
    SinceOption,
    StatusOption,
    TagOption,
    UntilOption,
    UrlOption,
    WorkflowOption,
    completer,
    run_query,
)
from wopr.cli.output import Cells, note, print_json, print_line, print_table, status_text
from wopr.cli.runs.report import has_references, print_snapshot
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.errors import BadStreamMode
from wopr.protocol.runs import (
    BulkCancel,
    BulkCancelAnswer,
    BulkCancelItem,
    CancelRun,
    DrainPolicy,
    PauseRun,
    ResumeRun,
    RunFeedback,
    RunListItem,
)
from wopr.protocol.streams import MODES, parse_modes

if TYPE_CHECKING:
    from wopr.api.client import Client

app = typer.Typer(help="List, show, follow and control runs.", no_args_is_help=True)

RunArgument = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run's id.")]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="The reason, which is stored in the run's log.")
]
MAX_BULK = 100


@app.command("list")
@command
def list_runs(
    status: StatusOption = None,
    workflow: WorkflowOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    flagged: FlaggedOption = None,
    rated: RatedOption = None,
    corrected: CorrectedOption = None,
    label: LabelOption = None,
    quarantined: QuarantinedOption = None,
    limit: LimitOption = 50,
    every: AllOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    query = run_query(
        status=status,
        workflow=workflow,
        tag=tag,
        since=since,
        until=until,
        flagged=flagged,
        rated=rated,
        corrected=corrected,
        label=label,
        quarantined=quarantined,
    )
    wanted = None if every else limit
    found = with_client(
        ServerOptions(url, api_key), lambda client: collect(client.runs, query, wanted)
    )
    columns = ("RUN", "STATUS", "WORKFLOW", "VERSION", "CREATED", "TAGS", "FEEDBACK")
    print_collected(found, columns, _row, as_json=as_json)


@app.command()
@command
def show(
    run_id: RunArgument,
    values: Annotated[
        bool,
        typer.Option("--values", help="Show large values instead of references to them."),
    ] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the current state of a run."""
    response = with_client(
        ServerOptions(url, api_key),
        lambda client: client.snapshot_with_values(run_id) if values else client.snapshot(run_id),
    )
    if as_json:
        print_json(response.body)
    else:
        print_snapshot(response.document)
        if not values and has_references(response.document):
            note(f"Show large values with `wopr runs show {run_id} --values`.")


@app.command()
@command
def tail(
    run_id: RunArgument,
    mode: Annotated[
        str,
        typer.Option(
            help="updates, values, messages, debug, or a comma-separated list without values.",
            autocompletion=completer(MODES),
        ),
    ] = "debug",
    start: Annotated[
        int, typer.Option("--from", min=0, metavar="SEQ", help="Start at this sequence.")
    ] = 0,
    exit_status: Annotated[
        bool, typer.Option("--exit-status", help="Exit like `wopr run`: 1 failed, 7 cancelled.")
    ] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run's events, past and new ones, until it ends."""
    try:
        parse_modes(mode)
    except BadStreamMode as fault:
        raise typer.BadParameter(fault.message, param_hint="--mode") from None

    async def follow(client: Client) -> str:
        from wopr.cli.runs.events import show_events

        snapshot = (await client.snapshot(run_id)).document
        await show_events(
            client,
            run_id,
            mode=mode,
            after=start - 1 if start else None,
            started_at=snapshot.started_at or None,
            as_json=as_json,
        )
        return (await client.snapshot(run_id)).document.status if exit_status else ""

    raise typer.Exit(exit_code_of_run(with_client(ServerOptions(url, api_key), follow)))


@app.command()
@command
def cancel(
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN_ID...", help="One run or many.")],
    reason: ReasonOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel runs and the runs that they started."""
    if len(run_ids) > MAX_BULK:
        raise typer.BadParameter(f"at most {MAX_BULK} runs per call", param_hint="RUN_ID")
    target = ServerOptions(url, api_key)
    why = UNSET if reason is None else reason
    if len(run_ids) == 1:
        one = with_client(target, lambda client: client.cancel(run_ids[0], CancelRun(reason=why)))
        if as_json:
            print_json(one.body)
        else:
            already = "already " if one.document.already_terminal else ""
            print_line(f"run {one.document.run_id} {already}{one.document.status}")
        return
    bulk = BulkCancel(run_ids=run_ids, reason=why)
    many = with_client(target, lambda client: client.bulk_cancel(bulk))
    if as_json:
        print_json(many.body)
    else:
        _print_bulk(many.document)
    raise typer.Exit(_bulk_exit_code(many.document))


@app.command()
@command
def pause(
    run_id: RunArgument,
    drain: Annotated[
        DrainPolicy, typer.Option(help="Wait for the current node, or interrupt it.")
    ] = "drain-current-node",
    reason: ReasonOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a run."""
    body = PauseRun(reason=UNSET if reason is None else reason, drain_policy=drain)
    response = with_client(ServerOptions(url, api_key), lambda client: client.pause(run_id, body))
    if as_json:
        print_json(response.body)
    else:
        print_line(f"run {response.document.run_id} {response.document.status}")


@app.command()
@command
def resume(
    run_id: RunArgument,
    reason: ReasonOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume a run that is paused or in quarantine."""
    body = ResumeRun(reason=UNSET if reason is None else reason)
    response = with_client(ServerOptions(url, api_key), lambda client: client.resume(run_id, body))
    if as_json:
        print_json(response.body)
    else:
        print_line(f"run {response.document.run_id} {response.document.status}")


def _row(run: RunListItem) -> Cells:
    return (
        run.run_id,
        status_text(run.status).append(" (quarantine)" if run.quarantine else ""),
        run.workflow_id,
        run.workflow_version,
        run.created_at,
        ", ".join(run.tags),
        _feedback_text(run.feedback),
    )


def _feedback_text(feedback: RunFeedback | Unset) -> str:
    """Summarise the feedback of a run, such as `4.5 stars, 1 correction, 2 flags`."""
    if isinstance(feedback, Unset):
        return ""
    mean = feedback.mean_rating
    parts = [] if isinstance(mean, Unset) else [f"{mean:.1f} stars"]
    for number, noun in (
        (feedback.corrections, "correction"),
        (feedback.flags, "flag"),
        (feedback.labels, "label"),
    ):
        if number:
            parts.append(f"{number} {noun}{'' if number == 1 else 's'}")
    return ", ".join(parts)


def _print_bulk(response: BulkCancelAnswer) -> None:
    print_table(
        ("RUN", "RESULT", "NOTE"),
        (
            (
                item.run_id,
                status_text(item.status or ("cancelling" if item.ok else "failed")),
                f"{item.error.code}: {item.error.message}" if item.error else "",
            )
            for item in response.results
        ),
    )


def _bulk_exit_code(response: BulkCancelAnswer) -> ExitCode:
    return next((_item_exit_code(item) for item in response.results if not item.ok), ExitCode.OK)


def _item_exit_code(item: BulkCancelItem) -> ExitCode:
    is_unknown = item.error is not UNSET and item.error.code == "not_found"
    return ExitCode.NOT_FOUND if is_unknown else ExitCode.CONFLICT
