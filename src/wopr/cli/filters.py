"""The options that select runs, each spelled once, and the query that they make."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from wopr.cli.options import some_of
from wopr.cli.values import parse_moment
from wopr.protocol.runs import RUN_STATUSES
from wopr.protocol.times import to_iso

StatusOption: TypeAlias = Annotated[list[str] | None, some_of("--status", RUN_STATUSES)]
WorkflowOption: TypeAlias = Annotated[
    str | None, typer.Option("--workflow", help="Only runs of this workflow.")
]
TagOption: TypeAlias = Annotated[str | None, typer.Option("--tag", help="Only runs with this tag.")]
SinceOption: TypeAlias = Annotated[
    str | None, typer.Option("--since", help="Created since: 2h, 7d, or an ISO 8601 time.")
]
UntilOption: TypeAlias = Annotated[
    str | None, typer.Option("--until", help="Created before: 2h, 7d, or an ISO 8601 time.")
]
FlaggedOption: TypeAlias = Annotated[
    bool | None, typer.Option("--flagged/--not-flagged", help="Only runs that were flagged or not.")
]
RatedOption: TypeAlias = Annotated[
    bool | None, typer.Option("--rated/--not-rated", help="Only runs that were rated or not.")
]
CorrectedOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--corrected/--not-corrected", help="Only runs that were corrected or not."),
]
LabelOption: TypeAlias = Annotated[
    str | None, typer.Option("--label", help="Only runs with an annotation of this label.")
]

QuarantinedOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--quarantined/--not-quarantined", help="Only runs that are in quarantine or not."
    ),
]


def moment(raw: str | None, option: str) -> str | None:
    """An option that names a time, or how long ago it was, as the wire writes it."""
    if not raw:
        return None
    return to_iso(parse_moment(raw, round(time.time() * 1000), option))


def run_query(
    *,
    status: Sequence[str] | None,
    workflow: str | None,
    tag: str | None,
    since: str | None,
    until: str | None,
    flagged: bool | None = None,
    rated: bool | None = None,
    corrected: bool | None = None,
    label: str | None = None,
    quarantined: bool | None = None,
) -> dict[str, str]:
    """The query that selects runs."""
    filters = {
        "flagged": _truth(flagged),
        "rated": _truth(rated),
        "corrected": _truth(corrected),
        "label": label,
        "quarantined": _truth(quarantined),
        "status": ",".join(status or []),
        "workflowId": workflow,
        "tag": tag,
        "since": moment(since, "--since"),
        "until": moment(until, "--until"),
    }
    return {name: value for name, value in filters.items() if value}


def _truth(value: bool | None) -> str | None:
    return None if value is None else str(value).lower()
