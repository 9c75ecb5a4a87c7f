"""One request: its parts, read when they are needed and refused with their name when bad."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from wopr.http.asgi import AUTHENTICATED, Message, Receive, Scope
from wopr.http.throttle import Throttle
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused, TooLarge, Unauthenticated, WoprError
from wopr.protocol.names import shown, unknown_key
from wopr.runtime.host import Host
from wopr.security.keys import Principal
from wopr.security.proxies import network_of
from wopr.security.redact import Redactor
from wopr.store.port import RememberedAnswer

T = TypeVar("T")
DEEPEST_JSON = 64
# Lists and objects of one body.
MOST_PARTS = 200_000
_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'{}[]"'))
# Longer ids of a path are no ids of this host.
LONGEST_ID = 256
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class WrongMediaType(WoprError):
    """A body in a format that this route does not read."""

    default_code = "unsupported_media_type"


class Exchange:
    """A request as handlers see it."""

    __slots__ = (
        "__dict__",
        "_body_bytes",
        "_has_place",
        "_headers",
        "_holder",
        "_read",
        "_receive",
        "_throttle",
        "host",
        "max_body_bytes",
        "path",
        "principal",
        "remember",
        "scope",
    )

    def __init__(self, host: Host, scope: Scope, receive: Receive, throttle: Throttle) -> None:
        self.host = host
        self.scope = scope
        self.path: dict[str, str] = scope.get("path_params", {})
        self.principal: Principal | None = None
        self.max_body_bytes = host.settings.max_body_bytes
        # Set where the answer must be kept in the transaction that makes it true.
        self.remember: Callable[[bytes], RememberedAnswer] | None = None
        # Of a repeated header the first counts.
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        self._read: bytes | None = None
        self._receive = receive
        self._throttle = throttle
        self._has_place = False
        # The bytes of the body that are counted, and for whom.
        self._body_bytes = 0
        self._holder = ""

    @property
    def client_address(self) -> str:
        """The address of the client, behind a trusted proxy too; empty when it is not known."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    def mark_authenticated(self) -> None:
        """Tell the connection whose key its client has. Raises `Unavailable` without room for it."""
        mark = self.scope.get(AUTHENTICATED)
        if mark is not None:
            mark(self.tenant)

    def enter(self) -> None:
        """Take a place among the requests in progress. Raises `Unavailable` when there is none."""
        self._throttle.enter(self.tenant)
        self._has_place = True

    def leave(self) -> None:
        """Give the place back, if the request has one."""
        if self._has_place:
            self._has_place = False
            self._throttle.leave(self.tenant)

    def close(self) -> None:
        """Give the place back, and count the body no longer: the request is answered."""
        self.leave()
        self._read = None
        size, self._body_bytes = self._body_bytes, 0
        if size:
            self._throttle.release(self._holder, size)

    def give_back(self, body: bytes) -> None:
        """Let the handler read a body that was read before it."""
        self._read = body

    async def replay(self) -> Message:
        """Receive as the application does: first the body that was given back, then what follows."""
        body, self._read = self._read, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}

    @property
    def caller(self) -> Principal:
        """The authenticated principal; public routes have none."""
        if self.principal is None:
            raise Unauthenticated("this needs an API key: Authorization: Bearer <key>")
        return self.principal

    @property
    def tenant(self) -> str:
        """The caller's tenant, which no part of the request can change."""
        return self.caller.tenant

    @property
    def named_run(self) -> str:
        """The id of a run in the path, cut; empty without a valid key or without such an id.

        It goes into logs. The path of a client without a valid key may be any text.
        """
        return "" if self.principal is None else self.path.get("run_id", "")[:LONGEST_ID]

    @property
    def redactor(self) -> Redactor:
        """What keeps secrets out of answers to the caller's tenant."""
        tenant = "" if self.principal is None else self.principal.tenant
        return self.host.advancer.journal.redactors.of(tenant)

    async def catch_up(self, *run_ids: str) -> None:
        """Make those runs that were observed ready to be read, with all that was pushed of them."""
        for run_id in run_ids:
            await self.host.fleet.observers.catch_up(self.tenant, run_id)

    def header(self, name: bytes) -> str | None:
        """A request header by its lower-case name."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def traceparent(self) -> str:
        """The caller's trace, or nothing; what is not one is neither kept nor answered."""
        sent = self.header(b"traceparent") or ""
        return sent if is_traceparent(sent) else ""

    def already_has(self, etag: str) -> bool:
        """Whether `If-None-Match` names this strong tag, alone, in a list or by the star."""
        sent = self.header(b"if-none-match")
        if sent is None:
            return False
        tags = {tag.strip().removeprefix("W/") for tag in sent.split(",")}
        return etag in tags or "*" in tags

    @cached_property
    def query(self) -> dict[str, str]:
        """Query parameters; of a repeated one the last counts."""
        raw: bytes = self.scope.get("query_string", b"")
        if not raw:
            return {}
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))

    def whole_number(
        self, name: str, default: int, *, least: int = 0, most: int | None = None
    ) -> int:
        """A query parameter that must be a whole number within bounds."""
        raw = self.query.get(name)
        return default if raw is None else whole_number(name, raw, least=least, most=most)

    def truth(self, name: str) -> bool | None:
        """A query parameter that must be `true` or `false`; None where it is absent."""
        raw = self.query.get(name)
        if raw is None:
            return None
        if raw not in ("true", "false"):
            raise Refused(f"{name} must be true or false, not {raw[:40]!r}", field=name)
        return raw == "true"

    async def body(self, most: int | None = None) -> bytes:
        """The whole body, refused as soon as it is over the limit; a route may have a lower one."""
        limit = self.max_body_bytes if most is None else most
        if self._read is not None:
            if len(self._read) > limit:
                raise _too_large(limit)
            return self._read
        declared = self.header(b"content-length")
        if declared is not None and declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        # A client that sends slowly keeps no other request from being served.
        had_place = self._has_place
        self.leave()
        raw = await self._receive_all(limit)
        if had_place:
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
                self._count(len(chunk))
                chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _count(self, size: int) -> None:
        """Count bytes of the body until the request is answered."""
        if not self._body_bytes:
            # Before its key is known, or without one, a request belongs to its client's address.
            principal = self.principal
            self._holder = (
                f"address {network_of(self.client_address)}"
                if principal is None
                else f"tenant {principal.tenant}"
            )
        self._throttle.receive(self._holder, size)
        self._body_bytes += size

    async def document(self, kind: type[T], *, optional: T | None = None) -> T:
        """The body as a document; an empty body stands for `optional` where that is given."""
        raw = await self.raw_document()
        if not raw and optional is not None:
            return optional
        return decode(raw, kind)

    async def raw_document(self) -> bytes:
        """The body's bytes, once its media type is one that can be read."""
        raw = await self.body()
        declared = self.header(b"content-type")
        if raw and declared is not None:
            media = declared.partition(";")[0].strip().lower()
            if media != "application/json" and not media.endswith("+json"):
                raise WrongMediaType(
                    f"Content-Type must be application/json, not {media!r}", field="Content-Type"
                )
        _refuse_deep(raw)
        return raw


def is_traceparent(text: str) -> bool:
    """Tell whether a text names a trace as W3C has it."""
    return _TRACEPARENT.fullmatch(text) is not None


def whole_number(name: str, raw: str, *, least: int = 0, most: int | None = None) -> int:
    """Parse a whole number or refuse it by name."""
    bound = f"at least {least}" if most is None else f"between {least} and {most}"
    digits = raw.removeprefix("-")
    # 18 digits fit every store; `isdecimal` alone would let other scripts' digits through.
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 18
    if not is_number or int(raw) < least or (most is not None and int(raw) > most):
        raise Refused(f"{name} must be a whole number, {bound}, not {raw[:40]!r}", field=name)
    return int(raw)


def decode(raw: bytes, kind: type[T]) -> T:
    """Decode a JSON body, or refuse it naming the field and what was expected."""
    if not raw.strip():
        raise Refused("the body is empty: expected a JSON document", field="body")
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as fault:
        message, _, path = str(fault).partition(" - at ")
        field = path.strip("`").removeprefix("$").removeprefix(".") or "body"
        raise Refused(
            f"{field}: {_explained(message, field, kind)}", field=_named(message, field)
        ) from fault
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Refused(f"the body is not valid JSON: {fault}", field="body") from fault


def _explained(message: str, field: str, kind: type[T]) -> str:
    """Name an unknown key of the body with a suggestion, in place of the decoder's own words."""
    if "unknown field" not in message:
        return message
    name = message.split("`")[1]
    if field == "body" and issubclass(kind, msgspec.Struct):
        return unknown_key(name, [each.encode_name for each in msgspec.structs.fields(kind)])
    return f"unknown key {shown(name)!r}"


def _named(message: str, field: str) -> str:
    """The field at fault: unknown and missing members are named in the message, not in the path."""
    quoted = message.split("`")
    if "unknown field" in message or "missing required field" in message:
        return shown(quoted[1] if field == "body" else f"{field}.{quoted[1]}")
    return field


def decode_any(raw: bytes) -> Json:
    """Decode JSON of any shape."""
    return decode(raw, object)


def _refuse_deep(raw: bytes) -> None:
    """Bound the depth and the parts of a body, before anything decodes it or walks through it.

    Decoding holds the interpreter, also in a thread, and takes longest for many small parts.
    """
    # Most bodies do not have enough brackets to be deep, and need no closer look.
    if raw.count(b"{") + raw.count(b"[") <= DEEPEST_JSON:
        return
    brackets = _brackets(raw)
    if len(brackets) // 2 > MOST_PARTS:
        raise Refused(
            f"the body may have at most {MOST_PARTS} lists and objects",
            field="body",
            limit=MOST_PARTS,
        )
    for _ in range(DEEPEST_JSON):
        outer = brackets.replace(b"[]", b"")
        if outer == brackets:
            # None is left, or they do not match: then the decoder refuses the body.
            return
        brackets = outer
    if brackets:
        raise Refused(f"the body may be nested {DEEPEST_JSON} deep at most", field="body")


def _brackets(raw: bytes) -> bytes:
    """Return the brackets of a JSON text outside its strings, braces as square brackets."""
    unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    quoted = unescaped.translate(_AS_BRACKETS, _NEITHER_BRACKET_NOR_QUOTE)
    # A string without brackets in it is an empty pair of quotation marks now.
    return b"".join(quoted.replace(b'""', b"").split(b'"')[::2])


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body may have at most {limit} bytes", field="body", limit=limit)
