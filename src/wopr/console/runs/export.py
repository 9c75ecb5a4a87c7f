"""Downloads of a run: debug bundle, artifacts and Markdown."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from typing import Final

import anyio.to_thread

from wopr.console.formatting import compact, duration, percent, pretty_start, status_text
from wopr.console.page import Page, PageRequest
from wopr.console.runs.agent_steps import AgentStep
from wopr.console.runs.view import RunPageView, load_run_view
from wopr.console.static_files import SAFE_HEADERS
from wopr.http.response import Response
from wopr.http.routes.runs import get_artifact, get_debug_bundle, run_id_of
from wopr.protocol.documents import Json, Unset, to_iso

_LAST_EVENTS: Final = 200


def run_markdown(view: RunPageView) -> str:
    """Return a run as Markdown."""
    return "\n".join(
        [*_head(view), *_nodes(view), *_agent_steps(view), *_values(view), *_events(view)]
    )


def _head(view: RunPageView) -> Iterator[str]:
    row, run = view.row, view.snapshot
    yield f"# Run {_code(row.run_id)}"
    yield ""
    workflow = _code(f"{row.workflow_id} {row.workflow_version}")
    yield f"**{status_text(view.status)}**, workflow {workflow}"
    yield ""
    yield f"- started {to_iso(row.created_at)}"
    if row.ended_at is not None:
        yield f"- ended {to_iso(row.ended_at)}, after {duration(view.took)}"
    if row.tags:
        yield f"- tags {', '.join(map(_code, row.tags))}"
    for interrupt in view.interrupts:
        node, question = _code(interrupt.node_id), _code(interrupt.question)
        yield f"- waiting for {interrupt.what} at {node}: {question}"
    if not isinstance(run.error, Unset):
        yield f"- error {_code(run.error.code)}: {_code(run.error.message)}"
    yield ""


def _nodes(view: RunPageView) -> Iterator[str]:
    yield "## Nodes"
    yield ""
    yield "| Node | Status | Attempts | Duration |"
    yield "| --- | --- | ---: | ---: |"
    for lane in view.lanes:
        took = duration(lane.took)
        yield f"| {_cell(lane.node_id)} | {status_text(lane.status)} | {lane.attempts} | {took} |"
    yield ""


def _agent_steps(view: RunPageView) -> Iterator[str]:
    if not view.turns:
        return
    yield "## Agents"
    yield ""
    for turn in view.turns:
        yield f"**{_code(turn.agent_id or turn.node_id)}** at {_code(turn.node_id)}"
        yield ""
        for step in turn.steps:
            yield f"- {_code(step.title)}{_confidence_text(step)}{_step_text(step)}"
        yield ""


def _confidence_text(step: AgentStep) -> str:
    if step.confidence is None:
        return ""
    needed = step.confidence.threshold
    of = "" if needed is None else f" (needs {percent(needed)})"
    return f", {percent(step.confidence.value)} confident{of}"


def _step_text(step: AgentStep) -> str:
    parts = [_code(step.text)] if step.text else []
    parts += [_code(compact(step.document))] if step.document is not None else []
    parts += [f"→ {step.status} {_code(compact(step.returned))}"] if step.status else []
    return f": {' '.join(parts)}" if parts else ""


def _values(view: RunPageView) -> Iterator[str]:
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


def _events(view: RunPageView) -> Iterator[str]:
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
    """Return untrusted text as a code span that it cannot close."""
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


_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "-_")


async def download_bundle(request: PageRequest) -> Response:
    """Return the debug bundle of the API as a file."""
    run_id = run_id_of(request.http)
    response = await get_debug_bundle(request.http)
    shown = "".join(each for each in run_id if each in _PLAIN)
    headers = SAFE_HEADERS | {"content-disposition": f'attachment; filename="run-{shown}.json"'}
    return Response(response.status, response.body, response.content_type, headers)


async def show_markdown(request: PageRequest) -> Response:
    """Return the run as Markdown, for an issue or a chat."""
    async with request.heavy_read_slot():
        view = await load_run_view(request, run_id_of(request.http))
        markdown = await anyio.to_thread.run_sync(run_markdown, view)
    text = markdown.encode("utf-8", "replace")
    return Response(200, text, "text/markdown; charset=utf-8", dict(SAFE_HEADERS))


async def show_artifact(request: PageRequest) -> Response:
    """Return an artifact of the run, or a value that its events refer to."""
    response = await get_artifact(request.http)
    return Response(response.status, response.body, response.content_type, dict(SAFE_HEADERS))


PAGES: Final = (
    # Before the page of the run, whose path would match too.
    Page(
        name="markdown",
        path="/runs/{run_id}.md",
        get=show_markdown,
        scope="runs:read",
        read_level="sensitive",
    ),
    Page(
        name="bundle",
        path="/runs/{run_id}/bundle",
        get=download_bundle,
        scope="runs:read",
        read_level="recorded",
    ),
    Page(
        name="artifact",
        path="/runs/{run_id}/artifacts/{artifact_id}",
        get=show_artifact,
        scope="artifacts:read",
        read_level="sensitive",
    ),
)
