"""Responses of handlers, and how they are written to the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import anyio
import anyio.to_thread
import msgspec
import structlog

from wopr.http.limits import CHUNK_BYTES, SLICE_BYTES, OpenStream
from wopr.http.request import Receive, Send
from wopr.protocol.documents import encode
from wopr.protocol.errors import ErrorEnvelope, Unavailable, WoprError
from wopr.security.redact import LARGE_BYTES, Redactor

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
# Maximum characters of an error message, and of each text in its details.
MAX_TEXT_LENGTH = 1_000
# Statuses of responses without a body.
NO_BODY = frozenset({204, 304})
# Seconds that writing the last chunk of a stream may take when the host ends the stream.
LAST_CHUNK_SECONDS = 0.5

log = structlog.get_logger("wopr.http")


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """A response that is written until its source ends or the client disconnects."""

    chunks: AsyncIterator[bytes]
    content_type: str = EVENT_STREAM
    # Whether the chunks form one document. If it is incomplete, the connection is closed without
    # a last chunk, so that the client notices it.
    is_document: bool = False
    # The last chunk if the key or session becomes invalid.
    last_chunk: bytes = b""


@dataclass(frozen=True, slots=True)
class DeferredResponse:
    """A response that waits for events. It counts as a stream while it waits."""

    wait: Callable[[], Awaitable[Response]]


def ok(document: object, status: int = 200, **headers: str) -> Response:
    """Return a JSON response."""
    return Response(status, encode(document), headers=headers)


def error_envelope(error: WoprError, redactor: Redactor) -> ErrorEnvelope:
    """Return the error envelope, without credentials.

    Texts from the request are truncated, so that errors stay small.
    """
    envelope = error.envelope()
    details = {
        name: redactor.excerpt(value, MAX_TEXT_LENGTH) if isinstance(value, str) else value
        for name, value in envelope.details.items()
    }
    return ErrorEnvelope(
        error=envelope.error,
        message=redactor.excerpt(envelope.message, MAX_TEXT_LENGTH),
        details=redactor.json(msgspec.to_builtins(details)),
    )


def error_response(error: WoprError, redactor: Redactor | None = None) -> Response:
    """Return the response for an error, with the headers of its status.

    Without a redactor of the host, only texts with the shape of a credential are masked.
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
    return Response(error.status, encode(envelope), headers=headers)


async def redact_response(response: Response, redactor: Redactor) -> Response:
    """Redact secrets in a response that repeats parts of its request.

    A large response is redacted in a thread.
    """
    if len(response.body) > LARGE_BYTES:
        return await anyio.to_thread.run_sync(redact_response_now, response, redactor)
    return redact_response_now(response, redactor)


def redact_response_now(response: Response, redactor: Redactor) -> Response:
    """Redact secrets in a response, in this thread."""
    if not redactor.may_hold_secret(response.body):
        return response
    return replace(response, body=encode(redactor.json(msgspec.json.decode(response.body))))


async def send_response(
    send: Send,
    response: Response,
    extra: Mapping[str, str] | None = None,
    record_read: Callable[[], None] | None = None,
) -> None:
    """Write a response. A large body is written in slices.

    Each slice waits until the client has read most of the previous ones; then `record_read` is
    called.
    """
    body = b"" if response.status in NO_BODY else response.body
    headers = [(b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", response.content_type.encode()))
    for name, value in response.headers.items():
        headers.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    for name, value in (extra or {}).items():
        headers.append((name.encode(), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    view = memoryview(body)
    while len(view) > SLICE_BYTES:
        await send({"type": "http.response.body", "body": view[:SLICE_BYTES], "more_body": True})
        view = view[SLICE_BYTES:]
        if record_read is not None:
            record_read()
    last = body if len(view) == len(body) else view
    await send({"type": "http.response.body", "body": last})


async def send_stream(
    send: Send,
    receive: Receive,
    stream: StreamResponse,
    opened: OpenStream,
    stopping: anyio.Event,
    extra: Mapping[str, str] | None = None,
) -> None:
    """Write chunks until the source ends, the client disconnects or the host ends the stream."""
    headers = [
        (b"content-type", stream.content_type.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        *((name.encode(), value.encode("latin-1")) for name, value in (extra or {}).items()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    is_whole = False

    async with anyio.create_task_group() as tasks:
        opened.scope = tasks.cancel_scope

        async def end_after(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        async def client_disconnects() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks.start_soon(end_after, client_disconnects)
        tasks.start_soon(end_after, stopping.wait)
        try:
            async for chunk in stream.chunks:
                opened.writing = chunk
                if len(chunk) <= CHUNK_BYTES:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                else:
                    await _send_slices(send, chunk, opened)
                opened.writing = None
                opened.written += 1
            is_whole = True
        except* Unavailable as caught:
            # The client reconnects with its last event id, or sees that a document is incomplete.
            log.warning("a stream ends early", message=str(caught.exceptions[0]))
        tasks.cancel_scope.cancel()
    if is_whole or not stream.is_document:
        # A client that does not read must not delay the host longer.
        with anyio.move_on_after(LAST_CHUNK_SECONDS if opened.reason else None):
            last = stream.last_chunk if opened.reason else b""
            await send({"type": "http.response.body", "body": last})


async def _send_slices(send: Send, chunk: bytes, opened: OpenStream) -> None:
    """Write a chunk in slices without copying them."""
    view = memoryview(chunk)
    for start in range(0, len(chunk), CHUNK_BYTES):
        body = view[start : start + CHUNK_BYTES]
        await send({"type": "http.response.body", "body": body, "more_body": True})
        opened.written += 1
