"""`wopr doctor`: check the installation and the server."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from wopr.api.text import plain
from wopr.cli.errors import ExitCode, command
from wopr.cli.options import DbOption, JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import print_json_value, print_line

_STYLES = {"ok": "green", "failed": "bold red", "skipped": "dim"}


@command
def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Do not check the server.")] = False,
    db: DbOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check Python, the data directory, the database, the server, the key and the clock."""
    import anyio

    from wopr.cli.operate.checks import check_machine, check_server

    checks = anyio.run(check_machine, db)
    if not offline:
        checks += anyio.run(check_server, ServerOptions(url, api_key))
    is_ok = all(check.state != "failed" for check in checks)
    if as_json:
        print_json_value({"ok": is_ok, "checks": [check.document() for check in checks]})
    else:
        for check in checks:
            print_line(
                Text.assemble(
                    (f"{check.state:<8}", _STYLES[check.state]),
                    (f"{check.name:<12}", "bold"),
                    plain(check.finding),
                )
            )
            if check.remedy:
                print_line(f"{'':<20}-> {check.remedy}")
    raise typer.Exit(ExitCode.OK if is_ok else ExitCode.FAILED)
