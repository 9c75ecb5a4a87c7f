"""A run as Markdown: what it was, how it went, what it came to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from wopr.console.run_view import RunView
from wopr.console.story import Beat
from wopr.console.words import compact, duration, percent, pretty_start, said
from wopr.protocol.documents import Json, Unset
from wopr.protocol.times import to_iso

_LAST_EVENTS: Final = 200


def run_markdown(view: RunView) -> str:
    """Write it."""
    return "\n".join([*_head(view), *_nodes(view), *_story(view), *_values(view), *_events(view)])


def _head(view: RunView) -> Iterator[str]:
    row, run = view.row, view.snapshot
    yield f"# Run {_code(row.run_id)}"
    yield ""
    yield f"**{said(view.status)}**, workflow {_code(f'{row.workflow_id} {row.workflow_version}')}"
    yield ""
    yield f"- started {to_iso(row.created_at)}"
    if row.ended_at is not None:
        yield f"- ended {to_iso(row.ended_at)}, after {duration(view.took)}"
    if row.tags:
        yield f"- tags {', '.join(map(_code, row.tags))}"
    for wait in view.waits:
        yield f"- waits for {wait.what} at {_code(wait.node_id)}: {_code(wait.question)}"
    if not isinstance(run.error, Unset):
        yield f"- error {_code(run.error.code)}: {_code(run.error.message)}"
    yield ""


def _nodes(view: RunView) -> Iterator[str]:
    yield "## Nodes"
    yield ""
    yield "| Node | Status | Attempts | Took |"
    yield "| --- | --- | ---: | ---: |"
    for lane in view.lanes:
        took = duration(lane.took)
        yield f"| {_cell(lane.node_id)} | {said(lane.status)} | {lane.attempts} | {took} |"
    yield ""


def _story(view: RunView) -> Iterator[str]:
    if not view.turns:
        return
    yield "## Agents"
    yield ""
    for turn in view.turns:
        yield f"**{_code(turn.agent_id or turn.node_id)}** at {_code(turn.node_id)}"
        yield ""
        for beat in turn.beats:
            yield f"- {_code(beat.title)}{_sure(beat)}{_told(beat)}"
        yield ""


def _sure(beat: Beat) -> str:
    if beat.sureness is None:
        return ""
    needed = beat.sureness.threshold
    of = "" if needed is None else f" of {percent(needed)} needed"
    return f", {percent(beat.sureness.confidence)} sure{of}"


def _told(beat: Beat) -> str:
    parts = [_code(beat.text)] if beat.text else []
    parts += [_code(compact(beat.document))] if beat.document is not None else []
    parts += [f"→ {beat.status} {_code(compact(beat.returned))}"] if beat.status else []
    return f": {' '.join(parts)}" if parts else ""


def _values(view: RunView) -> Iterator[str]:
    run = view.snapshot
    values: Mapping[str, Json] = {
        "Inputs": run.inputs,
        "Outputs": run.outputs,
        "Channels": run.channels,
    }
    for title, value in values.items():
        if value:
            yield f"## {title}"
            yield ""
            yield from _block(pretty_start(value))
            yield ""


def _events(view: RunView) -> Iterator[str]:
    yield "## Events"
    yield ""
    entries = view.log.entries
    if len(entries) > _LAST_EVENTS:
        yield f"The last {_LAST_EVENTS} of {len(entries)}."
        yield ""
    yield "| # | Type | Node |"
    yield "| ---: | --- | --- |"
    for entry in entries[-_LAST_EVENTS:]:
        yield f"| {entry.sequence} | {entry.event.type} | {_cell(entry.node_id)} |"
    yield ""


def _code(text: str) -> str:
    """Text of somebody else's, as a code span that it cannot get out of."""
    line = " ".join(text.split())
    ticks = "`" * (_longest_ticks(line) + 1)
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`" if line else ""


def _cell(text: str) -> str:
    return _code(text).replace("|", "\\|")


def _block(text: str) -> Iterator[str]:
    fence = "`" * max(_longest_ticks(text) + 1, 3)
    yield f"{fence}json"
    yield text
    yield fence


def _longest_ticks(text: str) -> int:
    return max((len(found) for found in re.findall("`+", text)), default=0)
