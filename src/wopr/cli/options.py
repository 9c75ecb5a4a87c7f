"""Options that several commands share, and the query that selects runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer
from typer.models import OptionInfo

from wopr.cli.values import parse_moment
from wopr.protocol.documents import to_iso
from wopr.protocol.runs import RUN_STATUSES

UrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="WOPR_URL",
        help="The server. Default: the URL in the credentials file of `wopr serve`.",
    ),
]
KeyOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="WOPR_API_KEY",
        help="The API key. Prefer the variable, because arguments are visible to other users.",
    ),
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON; a stream prints one document per line.")
]
DbOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--db",
        envvar="WOPR_DB",
        help="The database: sqlite:///file or postgresql://host/database. Prefer the variable for "
        "a URL with a password. Default: sqlite:///<data dir>/wopr.db",
        show_default=False,
    ),
]

LimitOption: TypeAlias = Annotated[
    int, typer.Option("--limit", min=1, help="Maximum number of items.")
]
AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All items, without a limit.")]


def repeatable_choice(
    option: str,
    names: Iterable[str],
    is_other: Callable[[str], bool] | None = None,
    others: str = "",
) -> OptionInfo:
    """Create a repeatable option that accepts these names.

    `is_other` accepts more values. `others` describes these in the error message.
    """
    known = tuple(names)

    def require_known(chosen: list[str] | None) -> list[str] | None:
        for name in chosen or []:
            if name not in known and (is_other is None or not is_other(name)):
                more = f", or {others}" if others else ""
                raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}{more}")
        return chosen

    described: OptionInfo = typer.Option(
        option,
        help="Only these; repeatable.",
        callback=require_known,
        autocompletion=completer(known),
    )
    return described


def completer(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Create the shell completion for these names."""
    known = tuple(names)

    def complete(prefix: str) -> list[str]:
        return [name for name in known if name.startswith(prefix)]

    return complete


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options `--url` and `--api-key`. None means the default."""

    url: str | None
    api_key: str | None


StatusOption: TypeAlias = Annotated[list[str] | None, repeatable_choice("--status", RUN_STATUSES)]
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
    bool | None,
    typer.Option("--flagged/--not-flagged", help="Only runs with a flag, or without one."),
]
RatedOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--rated/--not-rated", help="Only runs with a rating, or without one."),
]
CorrectedOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--corrected/--not-corrected", help="Only runs with a correction, or without one."
    ),
]
LabelOption: TypeAlias = Annotated[
    str | None, typer.Option("--label", help="Only runs with an annotation of this label.")
]

QuarantinedOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--quarantined/--not-quarantined", help="Only runs in quarantine, or only other runs."
    ),
]


def iso_moment(raw: str | None, option: str) -> str | None:
    """Convert an option with a time or a duration before now to ISO 8601."""
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
    """Create the query that selects runs."""
    filters = {
        "flagged": _bool_text(flagged),
        "rated": _bool_text(rated),
        "corrected": _bool_text(corrected),
        "label": label,
        "quarantined": _bool_text(quarantined),
        "status": ",".join(status or []),
        "workflowId": workflow,
        "tag": tag,
        "since": iso_moment(since, "--since"),
        "until": iso_moment(until, "--until"),
    }
    return {name: value for name, value in filters.items() if value}


def _bool_text(value: bool | None) -> str | None:
    return None if value is None else str(value).lower()
