"""Downloads of a run: its debug bundle, its artifacts, and the run as Markdown."""

from __future__ import annotations

import string
from typing import Final

import anyio.to_thread

from wopr.console.headers import SAFE_HEADERS
from wopr.console.markdown import run_markdown
from wopr.console.page import Page
from wopr.console.run_view import look
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.bundle import get_debug_bundle
from wopr.http.runs import get_artifact, run_id

_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "-_")


async def download_bundle(visit: Visit) -> Answer:
    """The debug bundle, the same that the API gives, as a file."""
    name = run_id(visit.exchange)
    answer = await get_debug_bundle(visit.exchange)
    shown = "".join(each for each in name if each in _PLAIN)
    headers = SAFE_HEADERS | {"content-disposition": f'attachment; filename="run-{shown}.json"'}
    return Answer(answer.status, answer.body, answer.content_type, headers)


async def show_markdown(visit: Visit) -> Answer:
    """The run as Markdown, for an issue or a chat."""
    async with visit.heavy():
        view = await look(visit, run_id(visit.exchange))
        markdown = await anyio.to_thread.run_sync(run_markdown, view)
    text = markdown.encode("utf-8", "replace")
    return Answer(200, text, "text/markdown; charset=utf-8", dict(SAFE_HEADERS))


async def show_artifact(visit: Visit) -> Answer:
    """A document of the run, or a value that its events refer to."""
    answer = await get_artifact(visit.exchange)
    return Answer(answer.status, answer.body, answer.content_type, dict(SAFE_HEADERS))


PAGES: Final = (
    # Before the page of the run itself, whose path would match as well.
    Page(
        name="markdown",
        path="/runs/{run_id}.md",
        get=show_markdown,
        scope="runs:read",
        read="sensitive",
    ),
    Page(
        name="bundle",
        path="/runs/{run_id}/bundle",
        get=download_bundle,
        scope="runs:read",
        read="recorded",
    ),
    Page(
        name="artifact",
        path="/runs/{run_id}/artifacts/{artifact_id}",
        get=show_artifact,
        scope="artifacts:read",
        read="sensitive",
    ),
)
