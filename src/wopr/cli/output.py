"""What commands print: text for people, JSON for programs.

Everything a server says is untrusted. It reaches the terminal as plain text: the consoles
interpret no markup, and control characters are taken out before printing.
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

from wopr.api.text import UNSAFE, is_plain, plain, plain_block, short
from wopr.protocol.documents import JsonObject, encode

__all__ = [
    "Cells",
    "console",
    "error_console",
    "is_plain",
    "labelled",
    "note",
    "plain",
    "plain_block",
    "print_block",
    "print_json",
    "print_json_line",
    "print_json_value",
    "print_line",
    "print_table",
    "short",
    "status_text",
]

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
    """A console on stdout: no markup, no colour unless it is a terminal that wants it."""
    return _console(is_terminal=sys.stdout.isatty(), stderr=False)


def error_console() -> Console:
    """The same on stderr."""
    return _console(is_terminal=sys.stderr.isatty(), stderr=True)


def _console(*, is_terminal: bool, stderr: bool) -> Console:
    # A pipe has no width: a line stays one line for the program that reads it.
    return Console(
        stderr=stderr,
        markup=False,
        highlight=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=None if is_terminal else _WIDE,
    )


def labelled(label: str, style: str, text: str) -> Text:
    """A line with a coloured word in front."""
    return Text.assemble((f"{label}: ", style), plain(text))


def status_text(status: str) -> Text:
    """A run's status in its colour."""
    style = "magenta" if status.startswith("waiting-") else _STATUS_STYLES.get(status, "")
    return Text(plain(status), style=style)


def print_json(document: bytes) -> None:
    """Print one JSON document, indented, exactly as the server gave it."""
    typer.echo(_safe_json(msgspec.json.format(document, indent=2)))


def print_json_line(document: bytes) -> None:
    """Print one JSON document on one line, and hand it on at once."""
    typer.echo(_safe_json(msgspec.json.format(document, indent=-1)))


def print_json_value(value: object) -> None:
    """Print a document of our own as JSON."""
    print_json(encode(value))


def _safe_json(document: bytes) -> str:
    # Outside strings JSON has no such characters, so escaping them keeps the same document.
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", document.decode())


def print_table(columns: Sequence[str], rows: Iterable[Cells]) -> None:
    """Print rows under bold headings; the first column is never cut."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    console().print(table)


def print_line(line: str | Text) -> None:
    """Print one line that the terminal itself wraps."""
    console().print(line if isinstance(line, Text) else plain(line), soft_wrap=True)


def print_block(title: str, values: JsonObject) -> None:
    """Print named values under a heading; nothing when there are none."""
    if not values:
        return
    out = console()
    out.print(Text(title, style="bold"))
    for name, value in values.items():
        text = plain(encode(value).decode())
        out.print(Text.assemble("  ", (plain(name), "cyan"), " = ", text), soft_wrap=True)


def note(text: str) -> None:
    """Say something beside the result, on stderr."""
    error_console().print(plain(text), style="dim", soft_wrap=True)
