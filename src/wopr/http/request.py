"""ASGI types, and a request whose parts are read and validated on demand."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec

from wopr.host.host import Host
from wopr.http.limits import RequestLimits
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused, TooLarge, Unauthenticated, WoprError
from wopr.protocol.suggestions import shorten_name, unknown_key
from wopr.security.api_keys import Principal
from wopr.security.proxies import network_of
from wopr.security.redact import Redactor
from wopr.store.port import RecordBuilder

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# Scope key of a function that records the tenant of the connection.
AUTHENTICATED: Final = "wopr.authenticated"
# Scope key of a function that closes the connection immediately.
ABORT: Final = "wopr.abort"
# Scope key of the transport, if it is not HTTP.
TRANSPORT: Final = "wopr.transport"


T = TypeVar("T")
MAX_JSON_DEPTH = 64
# Maximum number of lists and objects in one body.
MAX_JSON_PARTS = 200_000
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'{}[]"'))
# Maximum number of characters of an id that are logged or recorded.
MAX_LOGGED_ID_LENGTH = 256
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class WrongMediaType(WoprError):
    """The media type or encoding of the body is not supported by this route."""

    default_code = "unsupported_media_type"


class Request:
    """A request, with validated access to its parts."""

    __slots__ = (
        "__dict__",
        "_body_bytes",
        "_headers",
        "_holder",
        "_is_in_progress",
        "_limits",
        "_receive",
        "_stored_body",
        "build_record",
        "host",
        "max_body_bytes",
        "path",
        "principal",
        "scope",
    )

    def __init__(
        self, host: Host, scope: Scope, receive: Receive, request_limits: RequestLimits
    ) -> None:
        self.host = host
        self.scope = scope
        self.path: dict[str, str] = scope.get("path_params", {})
        self.principal: Principal | None = None
        self.max_body_bytes = host.settings.max_body_bytes
        # Set if the handler must store an idempotency record in the transaction of its change.
        self.build_record: RecordBuilder | None = None
        # If a header is repeated, the first value counts.
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        self._stored_body: bytes | None = None
        self._receive = receive
        self._limits = request_limits
        self._is_in_progress = False
        # The counted bytes of the body, and the holder that they are counted for.
        self._body_bytes = 0
        self._holder = ""

    @property
    def client_address(self) -> str:
        """The address of the client, also behind a trusted proxy; empty if it is unknown."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    def mark_authenticated(self) -> None:
        """Mark the connection as authenticated. Raises `Unavailable` if the limit is reached."""
        mark = self.scope.get(AUTHENTICATED)
        if mark is not None:
            mark(self.tenant)

    def enter(self) -> None:
        """Count the request as in progress. Raises `Unavailable` if the limit is reached."""
        self._limits.enter(self.tenant)
        self._is_in_progress = True

    def leave(self) -> None:
        """Stop counting the request as in progress."""
        if self._is_in_progress:
            self._is_in_progress = False
            self._limits.leave(self.tenant)

    def close(self) -> None:
        """Release everything that is counted for the request."""
        self.leave()
        self._stored_body = None
        size, self._body_bytes = self._body_bytes, 0
        if size:
            self._limits.release(self._holder, size)

    def store_body(self, body: bytes) -> None:
        """Store a body that was already read, for the handler."""
        self._stored_body = body

    async def receive(self) -> Message:
        """Receive ASGI messages, beginning with the stored body."""
        body, self._stored_body = self._stored_body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}

    @property
    def caller(self) -> Principal:
        """The authenticated principal; public routes have none."""
        if self.principal is None:
            raise Unauthenticated("this route needs an API key: Authorization: Bearer <key>")
        return self.principal

    @property
    def tenant(self) -> str:
        """The tenant of the caller's key."""
        return self.caller.tenant

    @property
    def named_run(self) -> str:
        """The truncated run id in the path, for logs; empty without a valid key or a run id.

        Without a valid key, the path may be any text, so it is not logged.
        """
        return "" if self.principal is None else self.path.get("run_id", "")[:MAX_LOGGED_ID_LENGTH]

    @property
    def redactor(self) -> Redactor:
        """The redactor of secrets for responses to the caller's tenant."""
        tenant = "" if self.principal is None else self.principal.tenant
        return self.host.advancer.journal.redactors.of_tenant(tenant)

    async def catch_up(self, *run_ids: str) -> None:
        """Update observed runs with all lines that were pushed before."""
        for run_id in run_ids:
            await self.host.fleet.observed.catch_up(self.tenant, run_id)

    def header(self, name: bytes) -> str | None:
        """Return a request header by its lower-case name; None if it is absent."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def media_type(self) -> str | None:
        """The media type of the body, in lower case and without parameters; None if absent."""
        declared = self.header(b"content-type")
        return None if declared is None else declared.partition(";")[0].strip().lower()

    @property
    def traceparent(self) -> str:
        """The caller's trace context; empty if it is absent or invalid."""
        sent = self.header(b"traceparent") or ""
        return sent if is_traceparent(sent) else ""

    def matches_etag(self, etag: str) -> bool:
        """Return whether `If-None-Match` contains this tag or `*`."""
        sent = self.header(b"if-none-match")
        if sent is None:
            return False
        tags = {tag.strip().removeprefix("W/") for tag in sent.split(",")}
        return etag in tags or "*" in tags

    @cached_property
    def query(self) -> dict[str, str]:
        """Query parameters. If one is repeated, the last value counts."""
        raw: bytes = self.scope.get("query_string", b"")
        if not raw:
            return {}
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))

    def whole_number(
        self, name: str, default: int, *, least: int = 0, most: int | None = None
    ) -> int:
        """Return a query parameter that must be a whole number within bounds."""
        raw = self.query.get(name)
        return default if raw is None else whole_number(name, raw, least=least, most=most)

    def boolean(self, name: str) -> bool | None:
        """Return a query parameter that must be `true` or `false`; None if it is absent."""
        raw = self.query.get(name)
        if raw is None:
            return None
        if raw not in ("true", "false"):
            raise Refused(f"{name} must be true or false, not {raw[:40]!r}", field=name)
        return raw == "true"

    async def body(self, most: int | None = None) -> bytes:
        """Return the body. Raises `TooLarge` above `most` bytes, by default `max_body_bytes`."""
        limit = self.max_body_bytes if most is None else most
        if self._stored_body is not None:
            if len(self._stored_body) > limit:
                raise _too_large(limit)
            return self._stored_body
        declared = self.header(b"content-length")
        if declared is not None and declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        # A client that sends slowly must not block other requests.
        was_in_progress = self._is_in_progress
        self.leave()
        raw = await self._receive_all(limit)
        if was_in_progress:
            self.enter()
        return raw

    async def _receive_all(self, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Refused("the body ended before it was complete", field="body")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            if chunk:
                self._count_body_bytes(len(chunk))
                chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _count_body_bytes(self, size: int) -> None:
        """Count bytes of the body until the response is sent."""
        if not self._body_bytes:
            # Without an authenticated key, the bytes count for the client's address.
            principal = self.principal
            self._holder = (
                f"address {network_of(self.client_address)}"
                if principal is None
                else f"tenant {principal.tenant}"
            )
        self._limits.receive(self._holder, size)
        self._body_bytes += size

    async def document(self, kind: type[T], *, optional: T | None = None) -> T:
        """Decode the body as a document. For an empty body, return `optional` if it is set."""
        raw = await self.raw_document()
        if not raw and optional is not None:
            return optional
        return decode(raw, kind)

    async def raw_document(self) -> bytes:
        """Return the bytes of a JSON body, after checks of its media type and structure."""
        raw = await self.body()
        media = self.media_type
        is_json = media is None or media == "application/json" or media.endswith("+json")
        if raw and not is_json:
            raise WrongMediaType(
                f"Content-Type must be application/json, not {media!r}", field="Content-Type"
            )
        _check_structure(raw)
        return raw


def is_traceparent(text: str) -> bool:
    """Return whether a text is a valid W3C `traceparent`."""
    return _TRACEPARENT.fullmatch(text) is not None


def whole_number(name: str, raw: str, *, least: int = 0, most: int | None = None) -> int:
    """Parse a whole number. Raises `Refused` with the name of the parameter."""
    bound = f"at least {least}" if most is None else f"between {least} and {most}"
    digits = raw.removeprefix("-")
    # 18 digits fit every store; `isdecimal` alone would accept digits of other scripts.
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 18
    if not is_number or int(raw) < least or (most is not None and int(raw) > most):
        raise Refused(f"{name} must be a whole number, {bound}, not {raw[:40]!r}", field=name)
    return int(raw)


def decode(raw: bytes, kind: type[T]) -> T:
    """Decode a JSON body. Raises `Refused` with the field and what was expected."""
    if not raw.strip():
        raise Refused("the body is empty: expected a JSON document", field="body")
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as fault:
        message, _, path = str(fault).partition(" - at ")
        field = path.strip("`").removeprefix("$").removeprefix(".") or "body"
        raise Refused(
            f"{field}: {_explain(message, field, kind)}", field=_field_name(message, field)
        ) from fault
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Refused(f"the body is not valid JSON: {fault}", field="body") from fault


def _explain(message: str, field: str, kind: type[T]) -> str:
    """Return the decoder's message, or for an unknown key a message with a suggestion."""
    if "unknown field" not in message:
        return message
    name = message.split("`")[1]
    if field == "body" and issubclass(kind, msgspec.Struct):
        return unknown_key(name, kind.__struct_encode_fields__)
    return f"unknown key {shorten_name(name)!r}"


def _field_name(message: str, field: str) -> str:
    """Return the invalid field. For unknown and missing members it is in the message."""
    quoted = message.split("`")
    if "unknown field" in message or "missing required field" in message:
        return shorten_name(quoted[1] if field == "body" else f"{field}.{quoted[1]}")
    return field


def decode_any(raw: bytes) -> Json:
    """Decode JSON of any shape."""
    return decode(raw, object)


def _check_structure(raw: bytes) -> None:
    """Refuse a body that is nested too deeply or has too many parts, before it is decoded.

    Decoding holds the interpreter lock, also in a thread, and is slowest for many small parts.
    """
    # Most bodies do not have enough brackets to be deep.
    if raw.count(b"{") + raw.count(b"[") <= MAX_JSON_DEPTH:
        return
    brackets = _brackets(raw)
    if len(brackets) // 2 > MAX_JSON_PARTS:
        raise Refused(
            f"the body may have at most {MAX_JSON_PARTS} lists and objects",
            field="body",
            limit=MAX_JSON_PARTS,
        )
    for _ in range(MAX_JSON_DEPTH):
        outer = brackets.replace(b"[]", b"")
        if outer == brackets:
            # No brackets are left, or they do not match; the decoder refuses the latter.
            return
        brackets = outer
    if brackets:
        raise Refused(f"the body may have at most {MAX_JSON_DEPTH} nested levels", field="body")


def _brackets(raw: bytes) -> bytes:
    """Return the brackets of a JSON text outside of strings, with braces as square brackets."""
    unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    quoted = unescaped.translate(_AS_BRACKETS, _NEITHER_BRACKET_NOR_QUOTE)
    # A string without brackets is now an empty pair of quotation marks.
    return b"".join(quoted.replace(b'""', b"").split(b'"')[::2])


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body may have at most {limit} bytes", field="body", limit=limit)
