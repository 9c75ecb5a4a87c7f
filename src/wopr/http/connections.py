"""Limits of connections: how many are open, and how large and how slow a request may be.

Uvicorn reads and parses requests. This module limits what a client can use before a handler sees
its request: the head of a request has a maximum size and a deadline, a body has a minimum rate, and
connections without an authenticated request have a separate limit.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import httptools
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from wopr.http.request import ABORT, AUTHENTICATED, ASGIApp, Receive, Scope, Send
from wopr.http.response import Response, error_response, send_response
from wopr.process.settings import Settings
from wopr.protocol.errors import RateLimited, Refused, Unavailable, WoprError
from wopr.security.proxies import TrustedProxies, network_of

MAX_PIPELINED: Final = 16
# Bytes that are read and dropped after a response, so that a client that still sends can read it.
MAX_DROPPED_BYTES: Final = 16 * 1024 * 1024
# Header fields and trailers of one request. Even short ones take time.
MAX_FIELDS: Final = 256
# Chunk sizes, chunk extensions and trailers: a fixed number of bytes, plus a number per body byte.
FRAMING_BYTES: Final = 1024 * 1024
FRAMING_PER_BYTE: Final = 8
# A body may have this many chunks, and one more per BYTES_PER_CHUNK bytes.
MAX_SMALL_CHUNKS: Final = 10_000
BYTES_PER_CHUNK: Final = 16
# A refused client has this time to read the response. Beyond MAX_LINGERING such clients,
# connections are closed immediately.
LINGER_SECONDS: Final = 2.0
MAX_LINGERING: Final = 100
RETRY_SECONDS: Final = 1
# A client with at most this many bytes to read has no minimum rate.
FEW_BYTES: Final = 4 * 1024
# One in this many connections is reserved for clients without a valid key.
RESERVED_SHARE: Final = 10
# Files that the process needs in addition to its connections.
OTHER_FILES: Final = 256


class _StopParsing(Exception):
    """Stops the parser on a connection that was refused."""


class _Pool:
    """Connections by holder (an address or a tenant), in the order in which they were added."""

    def __init__(self) -> None:
        self._by_holder: dict[str, dict[Connection, None]] = {}

    def add(self, connection: Connection) -> None:
        """Add a connection at the end, or move it there."""
        of_holder = self._by_holder.setdefault(connection.holder, {})
        of_holder.pop(connection, None)
        of_holder[connection] = None

    def discard(self, connection: Connection) -> None:
        """Remove a connection, if it is present."""
        of_holder = self._by_holder.get(connection.holder)
        if of_holder is not None:
            of_holder.pop(connection, None)
            if not of_holder:
                del self._by_holder[connection.holder]

    def pop(self, most: int = 0) -> Connection | None:
        """Remove the first connection of the largest holder, if it has more than `most`."""
        if not self._by_holder:
            return None
        largest = max(self._by_holder, key=self.count)
        if self.count(largest) <= most:
            return None
        connection = next(iter(self._by_holder[largest]))
        self.discard(connection)
        return connection

    def count(self, holder: str) -> int:
        """Return the number of connections of a holder."""
        return len(self._by_holder.get(holder, ()))


class ConnectionLimits:
    """The open connections of one process, and their limits.

    Every connection begins without a valid key. A part of all connections is reserved for those, so
    that a client can always send its first request, which may be a health check.

    A connection is waiting while its client must send a request or read a response. To make room,
    the host closes the connection that has waited longest, of the holder (address or tenant) with
    the most waiting connections.
    """

    def __init__(self, settings: Settings) -> None:
        self.max_header_bytes = settings.max_header_bytes
        self.header_seconds = settings.header_seconds
        self.body_grace_seconds = settings.body_grace_seconds
        self.min_body_rate = settings.min_body_rate
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self.open = 0
        self.unauthenticated = 0
        self.lingering = 0
        self.on_refused: Callable[[str], None] = lambda reason: None
        self._most = min(settings.max_connections, _raise_file_limit(settings.max_connections))
        self._most_unauthenticated = min(settings.max_unauthenticated_connections, self._most)
        self._most_authenticated = max(1, self._most - max(1, self._most // RESERVED_SHARE))
        self._most_of_address = min(settings.max_connections_per_address, max(1, self._most // 2))
        self._count_by_address: dict[str, int] = {}
        # Connections without an authenticated request, by address: waiting ones, and those with a
        # complete request in progress.
        self._unauthenticated_waiting = _Pool()
        self._unauthenticated_busy = _Pool()
        # Waiting connections that had an authenticated request, by tenant.
        self._authenticated_waiting = _Pool()

    def admit(self, connection: Connection) -> WoprError | None:
        """Count a new connection, or return why it is refused.

        At the limit, another connection is closed if possible; otherwise the new one is refused.
        """
        refusal = None if connection.is_proxy else self.enter(connection.network)
        if refusal is not None:
            return refusal
        most = max(1, min(self._most_unauthenticated, self._most - self._authenticated_count))
        if self.unauthenticated >= most and not self._replace_unauthenticated(connection, most):
            if not connection.is_proxy:
                self.leave(connection.network)
            return self._count_full_refusal(_full_error(most, "without"))
        self.open += 1
        self.unauthenticated += 1
        self._unauthenticated_waiting.add(connection)
        return None

    @property
    def _authenticated_count(self) -> int:
        return self.open - self.unauthenticated

    def _replace_unauthenticated(self, connection: Connection, limit: int) -> bool:
        """Close a connection without a valid key: a waiting one, or one of an address with more."""
        of_address = self._unauthenticated_busy.count(connection.network)
        found = self._unauthenticated_waiting.pop() or self._unauthenticated_busy.pop(of_address)
        return self._replace(found, _full_error(limit, "without"))

    def _make_room(self) -> None:
        """Make room for one more connection with a valid key."""
        if self._authenticated_count < self._most_authenticated:
            return
        error = _full_error(self._most_authenticated, "with")
        if not self._replace(self._authenticated_waiting.pop(), error):
            raise self._count_full_refusal(error)

    def _replace(self, connection: Connection | None, error: WoprError) -> bool:
        if connection is None:
            return False
        self.on_refused("replaced")
        connection.replace(error)
        return True

    def _count_full_refusal(self, error: WoprError) -> WoprError:
        self.on_refused("full")
        return error

    def release(self, connection: Connection) -> None:
        """Stop counting a connection."""
        self.open -= 1
        if not connection.is_authenticated:
            self.unauthenticated -= 1
        if not connection.is_proxy:
            self.leave(connection.network)
        self.discard(connection)

    def discard(self, connection: Connection) -> None:
        """Remove a connection from the pools."""
        if connection.is_authenticated:
            self._authenticated_waiting.discard(connection)
        else:
            self._unauthenticated_waiting.discard(connection)
            self._unauthenticated_busy.discard(connection)

    def set_waiting(self, connection: Connection) -> None:
        """Record that a connection waits for its client."""
        if connection.is_authenticated:
            self._authenticated_waiting.add(connection)
        else:
            self._unauthenticated_busy.discard(connection)
            self._unauthenticated_waiting.add(connection)

    def set_busy(self, connection: Connection) -> None:
        """Record that a connection has a complete request in progress and a client that reads."""
        if connection.is_authenticated:
            self._authenticated_waiting.discard(connection)
        else:
            self._unauthenticated_waiting.discard(connection)
            self._unauthenticated_busy.add(connection)

    def set_authenticated(self, connection: Connection, tenant: str) -> None:
        """Record the tenant of a connection. Raises `Unavailable` if the limit is reached."""
        if not connection.is_authenticated:
            self._make_room()
            self.unauthenticated -= 1
        self.discard(connection)
        connection.is_authenticated = True
        connection.holder = tenant

    def enter(self, address: str) -> WoprError | None:
        """Count a connection of an address, or a proxied request, or return why it is refused."""
        count = self._count_by_address.get(address, 0)
        if count >= self._most_of_address:
            self.on_refused("address")
            return RateLimited(
                f"this address has {count} connections, which is the limit; close some of them",
                retry_after=RETRY_SECONDS,
                scope="address",
                limit=self._most_of_address,
            )
        self._count_by_address[address] = count + 1
        return None

    def leave(self, address: str) -> None:
        """Stop counting a connection of an address."""
        count = self._count_by_address.get(address, 0) - 1
        if count > 0:
            self._count_by_address[address] = count
        else:
            self._count_by_address.pop(address, None)


class WriteBuffer:
    """The bytes that wait in a connection's buffer, and how fast the client reads them."""

    __slots__ = ("_began", "_read_bytes", "read_at", "size")

    def __init__(self) -> None:
        self.size = 0
        # When the client last read something, or had nothing to read.
        self.read_at = 0.0
        # Start of the period in which every check found bytes to read, and how much was read since.
        self._began: float | None = None
        self._read_bytes = 0

    def record(self, size: int, now: float) -> None:
        """Record how many bytes are in the buffer."""
        if self._began is None:
            self._began = self.read_at = now
            self._read_bytes = 0
        elif size < self.size:
            self._read_bytes += self.size - size
            self.read_at = now
        self.size = size

    def check(self, size: int, now: float) -> None:
        """Record how many bytes are in the buffer; called periodically.

        A client with few bytes to read has no minimum rate, because it is only a little behind.
        """
        is_read = size < self.size
        self.record(size, now)
        if not size or (is_read and size <= FEW_BYTES):
            self._began = None

    def is_too_slow(self, now: float, seconds: float, rate: int) -> bool:
        """Return whether the client read nothing for `seconds`, or less than `rate` bytes/s."""
        if self._began is None:
            return False
        due = self._began + seconds + self._read_bytes / rate
        return now - self.read_at >= seconds or now >= due


class LimitedConfig(uvicorn.Config):
    """Uvicorn's configuration, with the limits of connections."""

    def __init__(self, app: ASGIApp, connections: ConnectionLimits, **options: Any) -> None:
        super().__init__(
            app,
            http=Connection,
            # This module refuses WebSocket requests and reads the headers of proxies itself.
            ws="none",
            proxy_headers=False,
            headers=[("x-content-type-options", "nosniff")],
            **options,
        )
        self.connections = connections


class Connection(HttpToolsProtocol):
    """One connection. It has one deadline at a time: for the head or for the body of a request."""

    def __init__(
        self,
        config: LimitedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = config.connections
        self.peer = ""
        # The address for limits per address.
        self.network = ""
        # The address, or the tenant after authentication.
        self.holder = ""
        self.is_proxy = False
        self.is_authenticated = False
        self._is_counted = False
        self._is_refused = False
        self._in_head = True
        # Bytes since the request began, and how many of them belong to its body.
        self._sent_bytes = 0
        self._body_bytes = 0
        self._chunk_bytes = 0
        self._fields = 0
        self._chunks = 0
        self._dropped_bytes = 0
        self._body_began = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._is_lingering = False
        # The request that is being answered; `cycle` is the last one that was received.
        self._answering: RequestResponseCycle | None = None
        # The addresses of clients behind a proxy whose requests are not answered yet.
        self._clients: deque[str] = deque()
        self.unread = WriteBuffer()

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or refuse it."""
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self.network = self.holder = network_of(self.peer)
        self.is_proxy = self.limits.proxies.trusts(self.peer)
        refusal = self.limits.admit(self)
        if refusal is not None:
            self.refuse(refusal)
            return
        self._is_counted = True
        self._set_deadline(self.limits.header_seconds, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that is counted for the connection."""
        self._end()
        if self._is_lingering:
            self._is_lingering = False
            self.limits.lingering -= 1
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop writing until the client has read."""
        super().pause_writing()
        self.unread.record(self.transport.get_write_buffer_size(), self.loop.time())
        self._update_waiting()

    def resume_writing(self) -> None:
        """Continue writing, because the client has read most of the buffer."""
        self.unread.record(self.transport.get_write_buffer_size(), self.loop.time())
        super().resume_writing()
        self._update_waiting()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and apply the limits."""
        if self._is_refused:
            self._drop(len(data))
            return
        self._unset_keepalive_if_required()
        self._chunk_bytes = len(data)
        self._sent_bytes += self._chunk_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request is answered like any other. The bytes after it are not HTTP.
            self.cycle.keep_alive = False
            return
        except httptools.HttpParserError:
            self.refuse(Refused("the request is not valid HTTP/1.1"))
            return
        if self._sent_bytes:
            self._check_incomplete_request()

    @property
    def _parser(self) -> httptools.HttpRequestParser:
        # Uvicorn unsets it when the connection is lost. No data arrives after that.
        assert self.parser is not None
        return self.parser

    @property
    def _last_cycle(self) -> RequestResponseCycle | None:
        """The last request that was received; None before the first."""
        return self.cycle

    def _check_incomplete_request(self) -> None:
        """Apply the limits to an incomplete request."""
        if self._is_refused:
            return
        if self._in_head:
            self._continue_head()
        else:
            self._continue_body()

    def _continue_head(self) -> None:
        if self._sent_bytes > self.limits.max_header_bytes:
            self._refuse_head_bytes()
        elif self._deadline is None:
            self._set_deadline(self.limits.header_seconds, self._head_is_late)
            self._update_waiting()

    def _continue_body(self) -> None:
        framing = self._sent_bytes - (1 + FRAMING_PER_BYTE) * self._body_bytes
        if framing > self.limits.max_header_bytes + FRAMING_BYTES:
            self.refuse(Refused("the body has too many bytes of chunk extensions or trailers"))
        elif self._deadline is None:
            self._body_began = self.loop.time()
            self._set_deadline(self.limits.body_grace_seconds, self._check_body)
            self._update_waiting()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self.scope[AUTHENTICATED] = self.set_authenticated  # type: ignore[typeddict-unknown-key]
        self.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        # An upper bound: the chunk may have begun with the end of another request.
        self._sent_bytes = self._chunk_bytes
        self._body_bytes = 0
        self._fields = self._chunks = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are dropped."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            self._refuse_large_head(f"a request may have at most {MAX_FIELDS} headers", MAX_FIELDS)
            raise _StopParsing
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, unless it is refused."""
        self._clear_deadline()
        self._in_head = False
        if self._sent_bytes > self.limits.max_header_bytes and self._head_size() > (
            self.limits.max_header_bytes
        ):
            self._refuse_head_bytes()
        elif len(self.pipeline) >= MAX_PIPELINED:
            self.refuse(Refused(f"at most {MAX_PIPELINED} requests may be sent ahead"))
        if self._is_refused:
            raise _StopParsing
        refusal = self._refused_request()
        if refusal is None:
            super().on_headers_complete()
            return
        served: Any = self.app
        self.app = _refusing_app(refusal)
        try:
            super().on_headers_complete()
        finally:
            self.app = served

    def _refused_request(self) -> WoprError | None:
        """Return why a request is refused before a handler sees it."""
        if self.is_proxy:
            client = self._forwarded_client()
            self.scope["client"] = (client, 0)
            network = network_of(client)
            refusal = self.limits.enter(network)
            if refusal is not None:
                # A refused request is not counted. The empty address keeps the order of responses.
                self._clients.append("")
                return refusal
            self._clients.append(network)
        if not self._parser.should_upgrade():
            return None
        if self._get_upgrade() == b"websocket":
            return Refused(
                "this host does not support WebSocket; read events as text/event-stream",
                field="Upgrade",
            )
        if any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
            # The parser treats the body as bytes of the upgraded protocol.
            return Refused(
                "this host does not change the protocol of a connection; send a request with a "
                "body without the header Upgrade",
                field="Upgrade",
            )
        return None

    def _forwarded_client(self) -> str:
        values = [value for name, value in self.headers if name == b"x-forwarded-for"]
        return self.limits.proxies.client_address(self.peer, b",".join(values).decode("latin-1"))

    def on_chunk_header(self) -> None:
        """Count a chunk of the body."""
        self._chunks += 1
        if self._chunks > MAX_SMALL_CHUNKS + self._body_bytes // BYTES_PER_CHUNK:
            self.refuse(Refused(f"a body may have at most {MAX_SMALL_CHUNKS} small chunks"))
            raise _StopParsing

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body, or drop it if the request is answered."""
        if self._is_refused:
            return
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._drop(len(body))
        else:
            super().on_body(body)

    def _drop(self, size: int) -> None:
        """Drop bytes that arrive after the response. Abort the connection above a limit."""
        self._dropped_bytes += size
        if self._dropped_bytes > MAX_DROPPED_BYTES:
            self.transport.abort()

    def on_message_complete(self) -> None:
        """End the reading of a request."""
        self._clear_deadline()
        self._in_head = True
        self._sent_bytes = self._dropped_bytes = 0
        if self._is_refused:
            return
        super().on_message_complete()
        self._update_waiting()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        if self._clients:
            self._leave(self._clients.popleft())
        super().on_response_complete()
        self._update_waiting()

    def set_authenticated(self, tenant: str) -> None:
        """Record that a request had a valid key of a tenant.

        Raises `Unavailable` if the limit is reached.
        """
        is_known = self.is_authenticated and self.holder == tenant
        if self._is_counted and not is_known:
            self.limits.set_authenticated(self, tenant)
            self._update_waiting()

    def _update_waiting(self) -> None:
        """Record whether the connection waits for its client or for the host."""
        if not self._is_counted:
            return
        cycle = self._answering
        has_request = cycle is not None and not (cycle.response_complete or cycle.more_body)
        if has_request and not self.flow.write_paused:
            self.limits.set_busy(self)
        else:
            self.limits.set_waiting(self)

    # Deadlines

    def _set_deadline(self, seconds: float, callback: Callable[[], None]) -> None:
        self._deadline = self.loop.call_later(seconds, callback)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        self._deadline = None
        if self.flow.read_paused:
            # Earlier requests are being served, so nothing is read.
            self._set_deadline(self.limits.header_seconds, self._head_is_late)
        elif not self._sent_bytes:
            self._close()
        else:
            self.limits.on_refused("head_time")
            seconds = self.limits.header_seconds
            self.refuse(
                WoprError(
                    f"the request line and headers took longer than {seconds:g} s to arrive",
                    code="request_timeout",
                )
            )

    def _check_body(self) -> None:
        """Refuse a body that is slower than the minimum rate, or check again later."""
        self._deadline = None
        if self.cycle.response_complete:
            self._close()
            return
        if self.flow.read_paused:
            # The host does not read, because the handler is busy.
            self._body_began = self.loop.time()
        limits = self.limits
        due = self._body_began + limits.body_grace_seconds + self._body_bytes / limits.min_body_rate
        left = due - self.loop.time()
        if left > 0:
            self._set_deadline(left, self._check_body)
            return
        limits.on_refused("body_time")
        self.refuse(
            WoprError(
                f"the body arrived at less than {limits.min_body_rate} bytes per second",
                code="request_timeout",
            )
        )

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse_head_bytes(self) -> None:
        limit = self.limits.max_header_bytes
        self._refuse_large_head(
            f"the request line and headers may have at most {limit} bytes", limit
        )

    def _refuse_large_head(self, message: str, limit: int) -> None:
        self.limits.on_refused("head_size")
        self.refuse(WoprError(message, code="header_too_large", limit=limit))

    # The end

    def refuse(self, error: WoprError) -> None:
        """Respond with an error and close the connection.

        If a response is being sent, only close the connection.
        """
        if self._is_refused:
            return
        may_answer = self._may_answer()
        self._end()
        if self.transport.is_closing():
            return
        if not may_answer:
            self._hang_up()
            return
        is_read = not self.transport.get_write_buffer_size()
        self.transport.write(self._encode(error_response(error)))
        if self.limits.lingering < MAX_LINGERING:
            # If the client still sends, an immediate close would make the system drop the response.
            self.transport.write_eof()
            self.flow.resume_reading()
            self._linger()
        elif is_read:
            self.transport.close()
        else:
            self.transport.abort()

    def replace(self, error: WoprError) -> None:
        """Close this connection to make room for another one.

        No error is sent between requests, because the client expects no response.
        """
        has_answered = self._last_cycle is not None and self._last_cycle.response_complete
        is_between = has_answered and not (self._in_head and self._sent_bytes)
        if is_between or self.flow.write_paused:
            self._close()
        else:
            self.refuse(error)

    def _linger(self) -> None:
        self._is_lingering = True
        self.limits.lingering += 1
        self._set_deadline(LINGER_SECONDS, self._stop_lingering)

    def _stop_lingering(self) -> None:
        self._deadline = None
        self.transport.abort()

    def _may_answer(self) -> bool:
        """Return whether no byte of a response was sent before the refusal."""
        cycle = self._last_cycle
        if cycle is None or cycle.response_complete:
            return True
        # Only the request whose body is late gets the error, not a request that was sent ahead.
        return not (self._in_head or self.pipeline or cycle.response_started)

    def _close(self) -> None:
        self._end()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the connection. Unread bytes are kept for a short time if possible."""
        if not self.transport.get_write_buffer_size():
            self.transport.close()
        elif self.flow.write_paused or self.limits.lingering >= MAX_LINGERING:
            self.transport.abort()
        else:
            self.transport.close()
            self._linger()

    def _end(self) -> None:
        """Stop serving this connection."""
        self._is_refused = True
        self._clear_deadline()
        self._unset_keepalive_if_required()
        self._release()
        self.pipeline.clear()
        for cycle in (self._answering, self._last_cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.waiting_for_100_continue = False
                cycle.message_event.set()

    def _release(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self.limits.release(self)
        while self._clients:
            self._leave(self._clients.popleft())

    def _leave(self, client: str) -> None:
        if client:
            self.limits.leave(client)

    def _encode(self, response: Response) -> bytes:
        headers = {
            **response.headers,
            "content-type": response.content_type,
            "content-length": str(len(response.body)),
            "connection": "close",
        }
        lines = [
            *self.server_state.default_headers,
            *((name.encode(), value.encode("latin-1")) for name, value in headers.items()),
        ]
        return b"".join(
            [
                STATUS_LINE[response.status],
                *(b"%b: %b\r\n" % line for line in lines),
                b"\r\n",
                response.body,
            ]
        )


def _full_error(limit: int, which: str) -> WoprError:
    return Unavailable(
        f"the host has {limit} connections {which} a valid key, which is the limit; try again",
        retry_after=RETRY_SECONDS,
        limit=limit,
    )


def _refusing_app(error: WoprError) -> ASGIApp:
    """Return an application that responds with an error and closes the connection."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(send, error_response(error), {"connection": "close"})

    return refuse


def _raise_file_limit(connections: int) -> int:
    """Raise the limit of open files. Return how many of the connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, wanted - OTHER_FILES)
