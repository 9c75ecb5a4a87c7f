"""Output of commands: text for people, JSON for programs.

Text of a server is not trusted. It is printed without markup and without control characters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wopr.api.text import UNSAFE, plain
from wopr.protocol.documents import JsonObject, encode

# One row of a table.
Cells: TypeAlias = Sequence[str | Text]

_WIDE: Final = 10_000

_STATUS_STYLES: Final = {
    "completed": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "running": "cyan",
}


def console() -> Console:
    """Create a console on stdout without markup. Only terminals get colours."""
    return _console(is_terminal=sys.stdout.isatty(), stderr=False)


def error_console() -> Console:
    """Create a console on stderr without markup."""
    return _console(is_terminal=sys.stderr.isatty(), stderr=True)


def _console(*, is_terminal: bool, stderr: bool) -> Console:
    # Lines in a pipe are not wrapped, because programs read them.
    return Console(
        stderr=stderr,
        markup=False,
        highlight=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=None if is_terminal else _WIDE,
    )


def labelled(label: str, style: str, text: str) -> Text:
    """Return a line that starts with a coloured label."""
    return Text.assemble((f"{label}: ", style), plain(text))


def status_text(status: str) -> Text:
    """Return the status of a run in its colour."""
    style = "magenta" if status.startswith("waiting-") else _STATUS_STYLES.get(status, "")
    return Text(plain(status), style=style)


def print_json(document: bytes) -> None:
    """Print a JSON document of the server, indented and otherwise unchanged."""
    typer.echo(_safe_json(msgspec.json.format(document, indent=2)))


def print_json_line(document: bytes) -> None:
    """Print a JSON document on one line, and flush it."""
    typer.echo(_safe_json(msgspec.json.format(document, indent=-1)))


def print_json_value(value: object) -> None:
    """Print a value as JSON."""
    print_json(encode(value))


def _safe_json(document: bytes) -> str:
    # These characters occur only in strings, so the escaped document is equivalent.
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", document.decode())


def print_table(columns: Sequence[str], rows: Iterable[Cells]) -> None:
    """Print rows under bold headings. The first column is never truncated."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    console().print(table)


def print_line(line: str | Text) -> None:
    """Print one line. The terminal wraps it."""
    console().print(line if isinstance(line, Text) else plain(line), soft_wrap=True)


def print_block(title: str, values: JsonObject) -> None:
    """Print named values under a heading, if there are any."""
    if not values:
        return
    out = console()
    out.print(Text(title, style="bold"))
    for name, value in values.items():
        text = plain(encode(value).decode())
        out.print(Text.assemble("  ", (plain(name), "cyan"), " = ", text), soft_wrap=True)


def note(text: str) -> None:
    """Print a note on stderr."""
    error_console().print(plain(text), style="dim", soft_wrap=True)
