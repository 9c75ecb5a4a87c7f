"""The options that many commands share, each spelled once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer
from typer.models import OptionInfo

UrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="WOPR_URL", help="The server. Default: what `wopr serve` noted down here."
    ),
]
KeyOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="WOPR_API_KEY",
        help="The API key. Prefer the variable: arguments are visible to other users.",
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
        help="The database: sqlite:///file or postgresql://host/database. Prefer the variable for a URL "
        "with a password. Default: sqlite:///<data dir>/wopr.db",
        show_default=False,
    ),
]

LimitOption: TypeAlias = Annotated[int, typer.Option("--limit", min=1, help="At most that many.")]
AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All of them, however many.")]


def some_of(
    option: str,
    names: Iterable[str],
    is_other: Callable[[str], bool] | None = None,
    others: str = "",
) -> OptionInfo:
    """An option that may be given several times, each time with one of these names.

    `is_other` accepts further values, whose names the command line cannot know; `others` says in a
    message what they look like.
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
        autocompletion=completing(known),
    )
    return described


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """What a shell offers for the beginning of one of these names."""
    known = tuple(names)

    def complete(begun: str) -> list[str]:
        return [name for name in known if name.startswith(begun)]

    return complete


@dataclass(frozen=True, slots=True)
class Target:
    """The server and the key as the command line named them; None means: find it."""

    url: str | None
    api_key: str | None
