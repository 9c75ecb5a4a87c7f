"""A run as a table for a notebook or a terminal, and as a data frame."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from wopr.api.events import Event
from wopr.api.text import plain, short
from wopr.protocol.documents import Unset
from wopr.protocol.runs import RunSnapshot

_COLUMNS: Final = ("sequence", "time", "type", "node", "payload")
_PAYLOAD_LENGTH: Final = 160
_CELL: Final = "text-align:left;vertical-align:top;padding:2px 10px 2px 0"


@dataclass(frozen=True, slots=True, repr=False)
class RunView:
    """A run and its log at the time of reading. Notebooks and terminals show it as a table.

    Attributes:
        snapshot: The run.
        events: The events of its log.

    Example:
        >>> from wopr import Run
        >>> async def show(run: Run[object]) -> None:
        ...     print(await run.view())
    """

    snapshot: RunSnapshot
    events: Sequence[Event]

    @property
    def heading(self) -> str:
        """The workflow, its version, the status and the id of the run, in one line."""
        found = self.snapshot
        version = "" if isinstance(found.workflow_version, Unset) else f" {found.workflow_version}"
        return f"{found.workflow_id}{version}: {found.status} ({found.run_id})"

    def to_frame(self) -> Any:
        """Return the log as a pandas DataFrame, one row per event.

        Returns:
            The DataFrame.

        Raises:
            ModuleNotFoundError: pandas is not installed. The extra `pandas` installs it.
        """
        try:
            # Only this method needs pandas.
            pandas: Any = importlib.import_module("pandas")
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                'to_frame() needs pandas: pip install "wopr[pandas]"', name=missing.name
            ) from missing
        rows = [
            {
                "run_id": self.snapshot.run_id,
                "sequence": event.sequence,
                "timestamp": event.timestamp,
                "type": event.type,
                "node_id": event.node_id or None,
                "event_id": event.event_id,
                "payload": event.payload,
            }
            for event in self.events
        ]
        frame = pandas.DataFrame(rows)
        frame["timestamp"] = pandas.to_datetime(frame["timestamp"])
        return frame

    def __repr__(self) -> str:
        """Return the table as text."""
        console = Console(file=StringIO(), color_system=None)
        with console.capture() as shown:
            console.print(self)
        return shown.get().rstrip()

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook, with all text of the host escaped."""
        head = "".join(f'<th style="{_CELL}">{name}</th>' for name in _COLUMNS)
        rows = "".join(_html_row(_cells(event)) for event in self.events)
        return (
            f"<p><strong>{escape(self.heading)}</strong></p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(plain(self.heading), style="bold")
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name in _COLUMNS:
            # On a narrow terminal, only the payload is truncated.
            table.add_column(name, no_wrap=name != "payload")
        for event in self.events:
            cells = (Text(plain(cell), no_wrap=True, overflow="ellipsis") for cell in _cells(event))
            table.add_row(*cells)
        yield table


def _cells(event: Event) -> tuple[str, ...]:
    sequence = "" if isinstance(event.sequence, Unset) else str(event.sequence)
    payload = "" if event.payload in (None, {}) else short(event.payload, _PAYLOAD_LENGTH)
    return sequence, event.timestamp[11:23], event.type, event.node_id, payload


def _html_row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in cells) + "</tr>"
