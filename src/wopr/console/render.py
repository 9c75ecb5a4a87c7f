"""Templates, and the redaction of everything that the console answers.

Text that is not markup of the console's own is escaped, and a name that is missing fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import anyio
import anyio.to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined

from wopr.console import words
from wopr.console.static_files import static_path
from wopr.http import answers
from wopr.http.answers import JSON, Answer
from wopr.protocol.documents import JsonObject, encode
from wopr.security.redact import LARGE_BYTES, Redactor


def environment() -> Environment:
    """Make the one environment that renders all pages."""
    made = Environment(
        loader=PackageLoader("wopr.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(words.FILTERS)
    made.filters["static"] = static_path
    return made


_ENVIRONMENT: Final = environment()
_MARKUP: Final = re.compile('([<>"])')


def macro(template: str, name: str, values: Mapping[str, object]) -> Callable[..., str]:
    """A macro of a template. Calling it many times costs less than rendering a template each time."""
    call = getattr(_ENVIRONMENT.get_template(template).make_module(dict(values)), name)
    return lambda *arguments: str(call(*arguments)).encode("utf-8", "replace").decode()


def render(template: str, **values: object) -> bytes:
    """Render a template."""
    return _ENVIRONMENT.get_template(template).render(values).encode("utf-8", "replace")


async def redacted(answer: Answer, redactor: Redactor, shown_once: str = "") -> Answer:
    """Return an answer of the console without secrets: a page, a part of one, a file, an error.

    Every answer passes here, after escaping: registered values and credential shapes are known in
    their HTML form too. `shown_once` is a new key, which its page must show. A large answer is
    examined by a thread.
    """
    if len(answer.body) > LARGE_BYTES:
        return await anyio.to_thread.run_sync(_redacted, answer, redactor, shown_once)
    return _redacted(answer, redactor, shown_once)


def _redacted(answer: Answer, redactor: Redactor, shown_once: str) -> Answer:
    if answer.content_type == JSON:
        return answers.redacted_now(answer, redactor)
    text = answer.body.decode("utf-8", "replace")
    pieces = text.split(shown_once) if shown_once else [text]
    is_page = answer.content_type.startswith("text/html")
    clean = shown_once.join(
        _redacted_markup(piece, redactor) if is_page else redactor.text(piece) for piece in pieces
    )
    return answer if clean == text else replace(answer, body=clean.encode("utf-8", "replace"))


def _redacted_markup(text: str, redactor: Redactor) -> str:
    """Mask the secrets in a page and leave its markup whole.

    A secret that has no end of its own, such as half a private key, would be masked with the markup
    behind it. Escaped text has none of the characters that end it here. What is not found between
    these characters is masked in the page as a whole.
    """
    whole = redactor.text(text)
    if whole == text:
        return text
    parts = "".join(map(redactor.text, _MARKUP.split(text)))
    return parts if redactor.text(parts) == parts else whole


def redacted_frame(event: str, document: JsonObject, redactor: Redactor) -> bytes:
    """Write one event of a page's stream, without secrets."""
    body = encode(document)
    if redactor.may_hold_secret(body):
        body = encode(redactor.json(document))
    return b"event: %b\ndata: %b\n\n" % (event.encode(), body)
