"""A run to take along: as a debug bundle, and as Markdown."""

from __future__ import annotations

import string
from typing import Final

from wopr.console.headers import SAFE_HEADERS
from wopr.console.markdown import run_markdown
from wopr.console.page import Page
from wopr.console.run_view import look
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.bundle import get_debug_bundle
from wopr.http.runs import run_id

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
    view = await look(visit, run_id(visit.exchange))
    text = run_markdown(view).encode("utf-8", "replace")
    return Answer(200, text, "text/markdown; charset=utf-8", dict(SAFE_HEADERS))


PAGES: Final = (
    # Before the page of the run itself, whose path would match as well.
    Page(name="markdown", path="/runs/{run_id}.md", get=show_markdown, scope="runs:read"),
    Page(name="bundle", path="/runs/{run_id}/bundle", get=download_bundle, scope="runs:read"),
)
