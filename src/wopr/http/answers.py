"""What a handler gives back: a response, a stream, or a response that has to be waited for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import anyio
import anyio.to_thread
import msgspec

from wopr.protocol.documents import encode
from wopr.protocol.errors import ErrorEnvelope, WoprError
from wopr.security.redact import LARGE_BYTES, Redactor

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
# Characters of the message of an error, and of each text in its details.
MOST_SHOWN = 1_000


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on until its source ends or the reader leaves."""

    chunks: AsyncIterator[bytes]
    content_type: str = EVENT_STREAM
    # Half of a document must not look like a whole one: the connection breaks off instead.
    is_document: bool = False
    # What the reader is sent last when its key or session is no longer valid.
    farewell: bytes = b""


@dataclass(frozen=True, slots=True)
class Later:
    """A response that takes long because it waits for news. It counts as a stream meanwhile."""

    wait: Callable[[], Awaitable[Answer]]


def ok(document: object, status: int = 200, **headers: str) -> Answer:
    """A document as JSON."""
    return Answer(status, encode(document), headers=headers)


def error_envelope(error: WoprError, redactor: Redactor) -> ErrorEnvelope:
    """The document of an error. It may repeat parts of the request, without the credentials.

    Long texts are cut here: a request must not cost more because its refusal repeats it.
    """
    envelope = error.envelope()
    details = {
        name: redactor.excerpt(value, MOST_SHOWN) if isinstance(value, str) else value
        for name, value in envelope.details.items()
    }
    return ErrorEnvelope(
        error=envelope.error,
        message=redactor.excerpt(envelope.message, MOST_SHOWN),
        details=redactor.json(msgspec.to_builtins(details)),
    )


def error_answer(error: WoprError, redactor: Redactor | None = None) -> Answer:
    """The error envelope, with the headers that belong to its status.

    Without a redactor that knows a host's secrets only the shapes of credentials are masked.
    """
    headers: dict[str, str] = {}
    retry_after = getattr(error, "retry_after", None) or error.details.get("retryAfter")
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status == 405:
        headers["allow"] = str(error.details["allow"])
    envelope = error_envelope(error, redactor or Redactor())
    return Answer(error.status, encode(envelope), headers=headers)


async def redacted(answer: Answer, redactor: Redactor) -> Answer:
    """An answer that repeats parts of its request, without the secrets among them.

    A large one is examined by a thread.
    """
    if len(answer.body) > LARGE_BYTES:
        return await anyio.to_thread.run_sync(redacted_now, answer, redactor)
    return redacted_now(answer, redactor)


def redacted_now(answer: Answer, redactor: Redactor) -> Answer:
    """An answer without secrets."""
    if not redactor.may_hold_secret(answer.body):
        return answer
    return replace(answer, body=encode(redactor.json(msgspec.json.decode(answer.body))))
