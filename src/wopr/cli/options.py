"""The options that many commands share, each spelled once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

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


@dataclass(frozen=True, slots=True)
class Target:
    """The server and the key as the command line named them; None means: find it."""

    url: str | None
    api_key: str | None
