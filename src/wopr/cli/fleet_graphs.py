"""Send the graph of a CI run along: the line that begins the run carries what lies beside its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from wopr.cli.fleet_lines import SourceLine


def with_graphs(
    lines: Iterable[SourceLine], most_bytes: int, say: Callable[[str], None]
) -> Iterator[SourceLine]:
    """Give every line that begins a run the graph beside its log; `say` is told of a bad one.

    The line is sent as it is when it has a graph already, or would become too long with it.
    """
    for line in lines:
        # Few lines are worth a closer look.
        if b'"run_start"' not in line.raw or not _begins_run(line.raw):
            yield line
            continue
        carrying = replace(line, graph=_graph(line.path, say))
        yield carrying if len(carrying.sent) < most_bytes else line


def _begins_run(raw: bytes) -> bool:
    """Whether a line begins a run and carries no graph."""
    from wopr.fleet.events import RunStart
    from wopr.fleet.reading import BadLine, read_line

    try:
        line = read_line(raw)
    except BadLine:
        return False
    return isinstance(line.event, RunStart) and "graph" not in line.fields


def _graph(log: Path, say: Callable[[str], None]) -> bytes:
    """The graph beside a log on one line; empty when there is none, or none that can be read."""
    import msgspec

    from wopr.fleet.archive import GRAPH_NAME, LOG_NAME
    from wopr.protocol.documents import JsonObject

    path = log.with_name(GRAPH_NAME)
    if log.name != LOG_NAME or not path.is_file():
        return b""
    try:
        document = path.read_bytes()
        msgspec.json.decode(document, type=JsonObject)
    except (OSError, UnicodeError, msgspec.MsgspecError) as fault:
        say(f"{path}: not sent along, for it cannot be read: {fault}")
        return b""
    # As it is written, but for the space between its parts.
    return msgspec.json.format(document, indent=-1)
