"""The archive on disk (section 6): logs are appended, summaries written once, the index rebuilt."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from wopr.kahn.events import RunStart
from wopr.kahn.lines import KahnLine, compact, encode_line, read_line
from wopr.kahn.summary import is_complete, summarise
from wopr.protocol.documents import Json, JsonObject

LOG_NAME: Final = "transitions.jsonl"
GRAPH_NAME: Final = "graph.json"
SUMMARY_NAME: Final = "summary.json"
INDEX_NAME: Final = "index.json"
RUNS_NAME: Final = "runs"


def log_path(archive: Path, run_id: str) -> Path:
    """Return the path of the log of a run."""
    return archive / RUNS_NAME / run_id / LOG_NAME


def write_run(archive: Path, run_id: str, lines: Sequence[bytes], existing: int = 0) -> None:
    """Write the lines of a run, its graph if a line contains it, and its summary if it has ended.

    `existing` is the number of its first lines that the log already has.
    """
    append_lines(archive, run_id, lines[existing:])
    read = [read_line(line) for line in lines]
    write_graph(archive, run_id, read)
    summary = summarise(line.event for line in read)
    if is_complete(summary) and not summary_path(archive, run_id).exists():
        write_summary(archive, summary)


def summary_path(archive: Path, run_id: str) -> Path:
    """Return the path of the summary of a run."""
    return archive / RUNS_NAME / run_id / SUMMARY_NAME


def append_lines(archive: Path, run_id: str, lines: Iterable[bytes]) -> None:
    """Append lines, given without their newlines, to the log of a run."""
    path = log_path(archive, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as log:
        for line in lines:
            log.write(line + b"\n")


def write_graph(archive: Path, run_id: str, lines: Iterable[KahnLine]) -> None:
    """Write the graph that a line `run_start` contains, unless the file exists."""
    path = log_path(archive, run_id).with_name(GRAPH_NAME)
    starts = (line.fields for line in lines if isinstance(line.event, RunStart))
    graph: Json = next((fields["graph"] for fields in starts if "graph" in fields), None)
    if isinstance(graph, dict) and not path.exists():
        path.write_bytes(compact(graph).encode() + b"\n")


def write_summary(archive: Path, summary: JsonObject) -> None:
    """Write the summary of an ended run. Raises `FileExistsError` if it exists."""
    with summary_path(archive, summary["run_id"]).open("xb") as file:
        file.write(encode_line(summary) + b"\n")


def rebuild_index(archive: Path) -> None:
    """Rebuild the index from the summaries and replace it atomically."""
    found = (archive / RUNS_NAME).glob(f"*/{SUMMARY_NAME}")
    summaries = [msgspec.json.decode(path.read_bytes(), type=JsonObject) for path in found]
    summaries.sort(key=_order)
    new_index = archive / f"{INDEX_NAME}.new"
    new_index.write_bytes(encode_line({"runs": summaries}) + b"\n")
    os.replace(new_index, archive / INDEX_NAME)


def _order(summary: JsonObject) -> tuple[str, str]:
    return summary["started"], summary["run_id"]
