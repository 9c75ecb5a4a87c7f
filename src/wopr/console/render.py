"""Rendering of templates, and redaction of every response of the console.

All values are escaped. A missing name is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import anyio
import anyio.to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined

from wopr.console import formatting
from wopr.console.static_files import static_path
from wopr.http import response as responses
from wopr.http.response import JSON, Response
from wopr.protocol.documents import JsonObject, encode
from wopr.security.redact import LARGE_BYTES, Redactor


def _make_environment() -> Environment:
    """Return the Jinja environment of all pages."""
    environment = Environment(
        loader=PackageLoader("wopr.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(formatting.FILTERS)
    environment.filters["static"] = static_path
    return environment


_ENVIRONMENT: Final = _make_environment()
_MARKUP: Final = re.compile('([<>"])')


def macro(template: str, name: str, values: Mapping[str, object]) -> Callable[..., str]:
    """Return a macro of a template. Calling it costs less than rendering a template."""
    call = getattr(_ENVIRONMENT.get_template(template).make_module(dict(values)), name)
    return lambda *arguments: str(call(*arguments)).encode("utf-8", "replace").decode()


def render(template: str, **values: object) -> bytes:
    """Render a template."""
    return _ENVIRONMENT.get_template(template).render(values).encode("utf-8", "replace")


async def redact_console_response(
    response: Response, redactor: Redactor, shown_once: str = ""
) -> Response:
    """Redact a response of the console: a page, a part of a page, a file or an error.

    Every response passes here, after escaping: the redactor also finds secrets in their HTML form.
    `shown_once` is a new key, which its page must show. A thread examines a large response.
    """
    if len(response.body) > LARGE_BYTES:
        return await anyio.to_thread.run_sync(_redact_now, response, redactor, shown_once)
    return _redact_now(response, redactor, shown_once)


def _redact_now(response: Response, redactor: Redactor, shown_once: str) -> Response:
    if response.content_type == JSON:
        return responses.redact_response_now(response, redactor)
    text = response.body.decode("utf-8", "replace")
    pieces = text.split(shown_once) if shown_once else [text]
    is_page = response.content_type.startswith("text/html")
    clean = shown_once.join(
        _redact_markup(piece, redactor) if is_page else redactor.text(piece) for piece in pieces
    )
    return response if clean == text else replace(response, body=clean.encode("utf-8", "replace"))


def _redact_markup(text: str, redactor: Redactor) -> str:
    """Redact a page without breaking its markup.

    A secret without a defined end, such as half a private key, would be masked together with the
    markup after it. So the text between the characters of markup is redacted first; escaped text
    has none of them. Secrets that are found only in the whole page are masked in the whole page.
    """
    whole = redactor.text(text)
    if whole == text:
        return text
    parts = "".join(map(redactor.text, _MARKUP.split(text)))
    return parts if redactor.text(parts) == parts else whole


def redacted_frame(event: str, document: JsonObject, redactor: Redactor) -> bytes:
    """Encode one server-sent event of a live page, redacted."""
    body = encode(document)
    if redactor.may_hold_secret(body):
        body = encode(redactor.json(document))
    return b"event: %b\ndata: %b\n\n" % (event.encode(), body)
