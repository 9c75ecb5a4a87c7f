"""`wopr feedback`: annotate runs, list their annotations, and count them."""

from __future__ import annotations

from typing import Annotated

import typer

from wopr.cli.client import with_client
from wopr.cli.errors import command
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption, iso_moment
from wopr.cli.output import note as print_note
from wopr.cli.output import print_json, print_line, print_table
from wopr.cli.runs.commands import RunArgument
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.resources.annotations import (
    ActingAnnotationCreate,
    Actor,
    Anchor,
    Annotation,
    Signal,
)
from wopr.protocol.resources.reviews import FeedbackGroup, SummaryBy

app = typer.Typer(help="Annotate runs, and summarise the feedback.", no_args_is_help=True)


@app.command()
@command
def add(
    run_id: RunArgument,
    rating: Annotated[int | None, typer.Option(min=1, max=5, help="One to five stars.")] = None,
    label: Annotated[str | None, typer.Option(help="A label of your choice.")] = None,
    correction: Annotated[
        str | None, typer.Option(help="What the output should have been.")
    ] = None,
    flag: Annotated[bool, typer.Option("--flag", help="Flag the run for review.")] = False,
    event: Annotated[str | None, typer.Option(help="The id of the annotated event.")] = None,
    node: Annotated[str | None, typer.Option(help="The id of the annotated node.")] = None,
    note: Annotated[str | None, typer.Option(help="The reason.")] = None,
    actor: Annotated[
        str | None,
        typer.Option(help="The agent that is the author; needs the scope annotations:actor."),
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Annotate a run with a rating, a label, a correction or a flag."""
    body = ActingAnnotationCreate(
        signal=_signal(rating, label, correction, flag),
        target=Anchor(event_id=_or_unset(event), node_id=_or_unset(node)),
        note=_or_unset(note),
        actor=UNSET if actor is None else Actor(principal_ref=actor),
    )
    response = with_client(
        ServerOptions(url, api_key), lambda client: client.annotate(run_id, body)
    )
    if as_json:
        print_json(response.body)
    else:
        stored = response.document
        print_line(
            f"annotation {stored.annotation_id}: {_signal_text(stored)} of {_target_text(stored)}"
        )


@app.command("list")
@command
def list_annotations(
    run_id: RunArgument,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a run's annotations, oldest first."""
    response = with_client(ServerOptions(url, api_key), lambda client: client.annotations(run_id))
    if as_json:
        print_json(response.body)
        return
    print_table(
        ("CREATED", "BY", "SIGNAL", "OF", "NOTE"),
        (
            (
                each.created_at,
                each.actor.principal_ref,
                _signal_text(each),
                _target_text(each),
                each.note or "",
            )
            for each in response.document.annotations
        ),
    )


@app.command()
@command
def summary(
    by: Annotated[SummaryBy, typer.Option(help="What to group by.")] = "workflow",
    since: Annotated[
        str | None, typer.Option(help="Given since: 2h, 7d, or an ISO 8601 time. Default: 30d")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Given before: 2h, 7d, or an ISO 8601 time.")
    ] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only work of this agent.")] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count annotations, with the mean rating and the rates of corrections, flags, interventions.

    A rate is the fraction of the runs created in the window. An intervention is a person's answer
    or correction.
    """
    filters = {
        "by": by,
        "since": iso_moment(since, "--since"),
        "until": iso_moment(until, "--until"),
        "workflowId": workflow,
        "agentId": agent,
    }
    query = {name: value for name, value in filters.items() if value}
    response = with_client(
        ServerOptions(url, api_key), lambda client: client.feedback_summary(query)
    )
    if as_json:
        print_json(response.body)
        return
    found = response.document
    print_table(
        (
            *(by.upper(), "RUNS", "ANNOTATIONS", "MEAN RATING", "LABELS"),
            *("CORRECTED", "FLAGGED", "INTERVENED"),
        ),
        [*(_row(_key(each, by), each) for each in found.groups), _row("total", found.total)],
    )
    print_note(f"from {found.since} to {found.until}")


def _signal(rating: int | None, label: str | None, correction: str | None, flag: bool) -> Signal:
    signals = [
        each
        for each in (
            None if rating is None else Signal(kind="rating", rating=rating),
            None if label is None else Signal(kind="label", label=label),
            None if correction is None else Signal(kind="correction", correction=correction),
            Signal(kind="flag") if flag else None,
        )
        if each is not None
    ]
    if len(signals) != 1:
        raise typer.BadParameter("use one of --rating, --label, --correction and --flag")
    return signals[0]


def _or_unset(text: str | None) -> str | Unset:
    return UNSET if text is None else text


def _signal_text(annotation: Annotation) -> str:
    signal = annotation.signal
    value = signal.stars or signal.label or signal.correction or ""
    return f"{signal.kind} {value}".strip()


def _target_text(annotation: Annotation) -> str:
    target = annotation.target
    parts = [
        f"node {target.node_id}" if target.node_id else "",
        f"event {target.event_id}" if target.event_id else "",
    ]
    return " ".join(part for part in parts if part) or "the run"


def _key(group: FeedbackGroup, by: SummaryBy) -> str:
    match by:
        case "workflow":
            return group.workflow_id or ""
        case "agent":
            return group.agent_id or "no agent"
        case "node":
            return f"{group.workflow_id or ''} {group.node_id or 'the run'}"
        case "signal":
            return group.signal or ""
        case "time":
            return group.since or ""


def _row(name: str, group: FeedbackGroup) -> tuple[str, ...]:
    mean = "" if isinstance(group.mean_rating, Unset) else f"{group.mean_rating:.2f}"
    return (
        name,
        "" if isinstance(group.runs, Unset) else str(group.runs),
        str(group.annotations),
        mean,
        str(group.labels),
        _share(group.corrected_runs, group.correction_rate),
        _share(group.flagged_runs, group.flag_rate),
        _share(group.intervened_runs, group.intervention_rate),
    )


def _share(runs: int | Unset, rate: float | Unset) -> str:
    if isinstance(runs, Unset) or isinstance(rate, Unset):
        return ""
    return f"{runs} ({rate:.0%})"
