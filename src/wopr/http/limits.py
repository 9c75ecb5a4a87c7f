"""Limits of requests, request bodies, unsent responses and open streams.

- `RequestLimits`: requests in progress, and bytes of request bodies.
- `FailedAuthLimit`: failed authentications and requests without a key, per address.
- `PendingResponses`: bytes of large responses that clients have not read yet. A large response is
  sent in slices. If the bytes exceed the limit, the host closes connections: first those of the
  tenant that holds the most bytes, the longest waiting first.
- `OpenStreams`: open streams per key, tenant and process. Streams are responses of any duration:
  server-sent events, long polls, requests of MCP clients, documents that are written in pieces.
  They are not counted as requests in progress.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio
import structlog

from wopr.protocol.errors import RateLimited, Unauthenticated, Unavailable, WoprError
from wopr.security.api_keys import Principal
from wopr.security.buckets import MAX_BUCKETS, TokenBuckets, whole_seconds
from wopr.security.proxies import network_of

MINUTE_SECONDS: Final = 60
OPEN_BURST_SECONDS: Final = 4
# One tenant, or one address without a key, may hold a quarter of the bytes of bodies. A tenant with
# a quarter of the requests in progress gets more only while half of them are free.
HOLDER_SHARE: Final = 4
# The largest slice of a response that is written at once.
SLICE_BYTES: Final = 64 * 1024
# If a client has read nothing for this time, its connection may be closed to free memory.
UNREAD_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 2
# The largest chunk of a stream that is written at once. Uvicorn keeps one chunk above 64 KiB.
CHUNK_BYTES: Final = 32 * 1024
# How often the credentials of open streams are checked. Together with the time for which keys
# are cached, this is less than a second.
CHECK_SECONDS: Final = 0.4
# Number of credentials that are checked concurrently.
CHECKS_AT_ONCE: Final = 16
STREAM_RETRY_SECONDS: Final = 5

# Returns the limit of a quota of a tenant, or of one of its keys: quota, tenant, key id.
QuotaOf: TypeAlias = Callable[[str, str, str], int]

log = structlog.get_logger("wopr.http")


class RequestLimits:
    """Counts authenticated requests in progress, and the bytes of bodies of requests.

    It refuses more than `max_in_flight` requests. While half of these are in use, one tenant may
    have a quarter. Bodies of requests without a response may have `max_incoming_bytes` in all, and
    those of one holder a quarter of it.
    """

    def __init__(self, *, max_in_flight: int, max_incoming_bytes: int) -> None:
        self.in_flight = 0
        self.incoming_bytes = 0
        self._max_in_flight = max_in_flight
        self._max_incoming_bytes = max_incoming_bytes
        self._incoming_by_holder: dict[str, int] = {}
        self._in_flight_by_tenant: dict[str, int] = {}

    def enter(self, tenant: str) -> None:
        """Count a request in progress. Raises `Unavailable` above the limit."""
        most = self._max_in_flight
        of_tenant = self._in_flight_by_tenant.get(tenant, 0)
        if self.in_flight >= most:
            raise Unavailable(f"{most} requests are in progress; try again", limit=most)
        if of_tenant >= max(1, most // HOLDER_SHARE) and 2 * self.in_flight >= most:
            raise Unavailable(
                f"this tenant has {of_tenant} requests in progress, and the host is busy; "
                "try again",
                limit=of_tenant,
            )
        self.in_flight += 1
        self._in_flight_by_tenant[tenant] = of_tenant + 1

    def leave(self, tenant: str) -> None:
        """Stop counting a request."""
        self.in_flight -= 1
        left = self._in_flight_by_tenant[tenant] - 1
        if left:
            self._in_flight_by_tenant[tenant] = left
        else:
            del self._in_flight_by_tenant[tenant]

    def receive(self, holder: str, size: int) -> None:
        """Count bytes of a body. Raises `Unavailable` above the limit."""
        of_holder = self._incoming_by_holder.get(holder, 0) + size
        if (
            self.incoming_bytes + size > self._max_incoming_bytes
            or of_holder > self._max_incoming_bytes // HOLDER_SHARE
        ):
            raise Unavailable(
                "too many large request bodies are being received or processed; try again",
                limit=self._max_incoming_bytes,
            )
        self.incoming_bytes += size
        self._incoming_by_holder[holder] = of_holder

    def release(self, holder: str, size: int) -> None:
        """Stop counting the bytes of a body."""
        self.incoming_bytes -= size
        left = self._incoming_by_holder[holder] - size
        if left:
            self._incoming_by_holder[holder] = left
        else:
            del self._incoming_by_holder[holder]


class FailedAuthLimit:
    """Limits how often one address may fail to authenticate: `limit` times a minute; 0 is no limit.

    Above the limit an address gets 429. A valid key still works, because an address may be
    shared. The keys of such an address are looked up one at a time, so that guesses do not block
    the store for other clients.

    Requests that need no key have a separate limit: `open_rate` per second and address, with
    bursts of four seconds. An IPv6 address counts as its /64.
    """

    def __init__(self, limit: int, open_rate: int, clock: Callable[[], float]) -> None:
        self._open_requests: TokenBuckets[str] = TokenBuckets(
            open_rate, clock, burst=OPEN_BURST_SECONDS * open_rate
        )
        self._limit = limit
        self._clock = clock
        self._failures: TokenBuckets[str] = TokenBuckets(limit / MINUTE_SECONDS, clock, burst=limit)
        # Addresses above the limit, and until when.
        self._until: OrderedDict[str, float] = OrderedDict()
        self._one_at_a_time = anyio.Lock()

    def count_request_without_key(self, address: str) -> None:
        """Count a request that needs no key. Raises `RateLimited` above the limit."""
        wait = self._open_requests.take(network_of(address))
        if wait:
            seconds = whole_seconds(wait)
            raise RateLimited(
                f"Too many requests without a key from this address. Try again in {seconds} s.",
                retry_after=seconds,
                scope="address",
                limit=self._open_requests.rate,
            )

    async def authenticate(
        self, address: str, find: Callable[[], Awaitable[Principal]]
    ) -> Principal:
        """Find the principal of a key. Raises `RateLimited` for a failure above the limit."""
        try:
            if self._until and self._is_over_limit(network_of(address)):
                async with self._one_at_a_time:
                    return await find()
            return await find()
        except Unauthenticated:
            self._count_failure(network_of(address))
            raise

    def _is_over_limit(self, address: str) -> bool:
        until = self._until.get(address, 0.0)
        if until and until <= self._clock():
            del self._until[address]
            return False
        return until > 0.0

    def _count_failure(self, address: str) -> None:
        wait = self._failures.take(address)
        if not wait:
            return
        self._until[address] = self._clock() + wait
        if len(self._until) > MAX_BUCKETS:
            self._until.popitem(last=False)
        seconds = whole_seconds(wait)
        raise RateLimited(
            f"Too many requests with a wrong or missing key from this address. "
            f"Use a valid key, or try again in {seconds} s.",
            retry_after=seconds,
            scope="address",
            limit=self._limit,
        ) from None


@dataclass(slots=True, eq=False)
class PendingResponse:
    """A large response that is being sent."""

    tenant: str
    body: bytes
    close: Callable[[], None]
    # When the client last read a part of it.
    read_at: float


class PendingResponses:
    """The large responses of one process that are being sent."""

    def __init__(self, most_bytes: int, clock: Callable[[], float]) -> None:
        self.most_bytes = most_bytes
        # Bytes of streams that wait for their readers, and in the buffers of connections.
        self.other_bytes = 0
        self._clock = clock
        # In the order of the last read; the response that has waited longest is first.
        self._responses: dict[PendingResponse, None] = {}
        # Responses may share a body: its size, and the number of responses with it.
        self._bodies: dict[int, tuple[int, int]] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes of the responses that are being sent."""
        return self._size

    @contextmanager
    def hold(
        self, tenant: str, body: bytes, close: Callable[[], None], *, must_send: bool = False
    ) -> Generator[PendingResponse, None, None]:
        """Count a response during the block, and free memory for it.

        Raises `Unavailable` if there is no memory and no other response has waited long enough.
        With `must_send` it is never refused, because its request has already changed something.
        """
        self._make_room(tenant, body, must_send=must_send)
        response = PendingResponse(tenant, body, close, self._clock())
        self._responses[response] = None
        size, count = self._bodies.get(id(body), (len(body), 0))
        self._bodies[id(body)] = (size, count + 1)
        self._size += 0 if count else size
        try:
            yield response
        finally:
            self._drop(response)

    def record_read(self, response: PendingResponse) -> None:
        """Record that the client has read a part of a response."""
        if response in self._responses:
            response.read_at = self._clock()
            del self._responses[response]
            self._responses[response] = None

    def _drop(self, response: PendingResponse) -> None:
        """Stop counting a response, unless it was closed before."""
        if response not in self._responses:
            return
        del self._responses[response]
        size, count = self._bodies.pop(id(response.body))
        if count > 1:
            self._bodies[id(response.body)] = (size, count - 1)
        else:
            self._size -= size

    def _make_room(self, tenant: str, body: bytes, *, must_send: bool) -> None:
        if id(body) in self._bodies:
            return
        while self._responses and self._size + self.other_bytes + len(body) > self.most_bytes:
            longest = self._longest_waiting(tenant)
            read_recently = self._clock() - longest.read_at < UNREAD_SECONDS
            if longest.tenant == tenant and read_recently and not must_send:
                raise Unavailable(
                    f"unread responses have {self._size} bytes, and this one has {len(body)}: more "
                    f"than max_stream_buffer_bytes allows. Read the other responses, or try again "
                    f"in {RETRY_SECONDS} seconds.",
                    retry_after=RETRY_SECONDS,
                    limit=self.most_bytes,
                )
            self._close_connection(longest)

    def _longest_waiting(self, tenant: str) -> PendingResponse:
        """Return the response that has waited longest, of the tenant that holds the most bytes.

        If several tenants hold the same number of bytes, `tenant` comes first.
        """
        held: dict[str, int] = {}
        for response in self._responses:
            held[response.tenant] = held.get(response.tenant, 0) + len(response.body)
        largest = max(held, key=lambda each: (held[each], each == tenant))
        return next(response for response in self._responses if response.tenant == largest)

    def _close_connection(self, response: PendingResponse) -> None:
        log.warning(
            "connection closed: its client does not read, and other responses need the memory",
            tenant=response.tenant,
            bytes=len(response.body),
        )
        self._drop(response)
        response.close()


@dataclass(slots=True, eq=False)
class OpenStream:
    """An open stream, its credential, and the chunk that is being written."""

    principal: Principal
    # The id of the key or session, and a function that raises when it is no longer valid.
    credential: str
    check: Callable[[], Awaitable[object]]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    # Why the host ended the stream; None while it is open.
    reason: WoprError | None = None
    # The chunk that is being written, and how many were written before.
    writing: bytes | None = None
    written: int = 0
    # The number of written chunks at the last check, and the number of checks without progress.
    seen: int = 0
    blocked_checks: int = 0

    def end(self, reason: WoprError) -> None:
        """End the stream from another task."""
        self.reason = reason
        self.scope.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Maximum numbers of open streams, and the name of the setting for keys."""

    per_key: int
    per_tenant: int
    per_process: int
    key_setting: str = "max_streams_per_key"


class OpenStreams:
    """The open streams of a process. New streams above the limits are refused.

    `quota_of` returns the limit of a tenant or key, which replaces the general one; 0 is no limit.
    """

    def __init__(self, limits: StreamLimits, quota_of: QuotaOf | None = None) -> None:
        self._limits = limits
        self._quota_of = quota_of
        self._open: set[OpenStream] = set()
        self._by_key: Counter[tuple[str, str]] = Counter()
        self._by_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of open streams of this process."""
        return len(self._open)

    def of_tenant(self, tenant: str) -> int:
        """Return the number of open streams of a tenant."""
        return self._by_tenant[tenant]

    def of_key(self, tenant: str, key_id: str) -> int:
        """Return the number of open streams of a key."""
        return self._by_key[tenant, key_id]

    def admit(self, principal: Principal) -> None:
        """Raise `RateLimited` if the key, the tenant or the process has too many streams."""
        limits = self._limits
        tenant, key_id = principal.tenant, principal.key_id
        per_key, per_tenant = limits.per_key, limits.per_tenant
        of_key, of_tenant = limits.key_setting, "max_streams_per_tenant"
        if self._quota_of is not None:
            # 0 is no limit.
            per_key = self._quota_of("streams", tenant, key_id) or sys.maxsize
            per_tenant = self._quota_of("streams", tenant, "") or sys.maxsize
            of_key, of_tenant = (
                f'the quota "streams" of this {each}' for each in ("key", "tenant")
            )
        if (count := self._by_key[tenant, key_id]) >= per_key:
            raise _stream_limit_error("key", "This key", per_key, count, of_key)
        if (count := self._by_tenant[tenant]) >= per_tenant:
            raise _stream_limit_error("tenant", "This tenant", per_tenant, count, of_tenant)
        if (count := len(self._open)) >= limits.per_process:
            raise _stream_limit_error(
                "global", "This host", limits.per_process, count, "max_streams"
            )

    @contextmanager
    def open(
        self, principal: Principal, credential: str, check: Callable[[], Awaitable[object]]
    ) -> Generator[OpenStream, None, None]:
        """Count a stream during the block. Raises `RateLimited` above a limit."""
        self.admit(principal)
        stream = OpenStream(principal, credential, check)
        tenant, key = principal.tenant, (principal.tenant, principal.key_id)
        self._open.add(stream)
        self._by_key[key] += 1
        self._by_tenant[tenant] += 1
        try:
            yield stream
        finally:
            self._open.discard(stream)
            self._by_key[key] -= 1
            self._by_tenant[tenant] -= 1
            # Counters of 0 are removed to save memory.
            if not self._by_key[key]:
                del self._by_key[key]
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]

    async def end_unauthorised(self) -> None:
        """End the streams whose key was revoked or expired, or whose session was signed out."""
        by_credential: dict[str, list[OpenStream]] = {}
        for stream in self._open:
            by_credential.setdefault(stream.credential, []).append(stream)
        # All tasks take from one iterator, so that each credential is checked once.
        unchecked = iter(by_credential.values())
        async with anyio.create_task_group() as tasks:
            for _ in range(min(CHECKS_AT_ONCE, len(by_credential))):
                tasks.start_soon(_end_unauthorised, unchecked, tasks.cancel_scope)

    def end_blocked(self, most_bytes: int) -> None:
        """End streams whose readers are too slow, until the rest hold at most `most_bytes`."""
        for stream in self._open:
            is_blocked = stream.writing is not None and stream.written == stream.seen
            stream.blocked_checks = stream.blocked_checks + 1 if is_blocked else 0
            stream.seen = stream.written
        blocked = [stream for stream in self._open if stream.blocked_checks and not stream.reason]
        # Readers of one event share its bytes.
        held = {id(stream.writing): len(stream.writing or b"") for stream in blocked}
        total = sum(held.values())
        for stream in sorted(blocked, key=lambda each: each.blocked_checks, reverse=True):
            if total <= most_bytes:
                return
            reason = RateLimited(
                f"Unread streams have {total} bytes, and max_stream_buffer_bytes is {most_bytes}. "
                f"Read faster, or try again in {STREAM_RETRY_SECONDS} seconds.",
                retry_after=STREAM_RETRY_SECONDS,
                scope="global",
                limit=most_bytes,
                current=total,
            )
            total -= held.pop(id(stream.writing), 0)
            log.warning("stream closed: its reader is too slow", key_id=stream.principal.key_id)
            stream.end(reason)


async def watch_streams(pools: Iterable[OpenStreams], most_buffered: Callable[[], int]) -> None:
    """Check the open streams until cancelled. `most_buffered` returns their limit in bytes."""
    while True:
        await anyio.sleep(CHECK_SECONDS)
        for pool in pools:
            pool.end_blocked(most_buffered())
            await pool.end_unauthorised()


async def _end_unauthorised(
    unchecked: Iterator[list[OpenStream]], scope: anyio.CancelScope
) -> None:
    """Check credentials one after another, and end the streams of invalid ones."""
    for streams in unchecked:
        try:
            await streams[0].check()
        except Unauthenticated as reason:
            for stream in streams:
                stream.end(reason)
        except WoprError as error:
            log.error("streams cannot be checked", code=error.code, message=str(error))
            scope.cancel()
            return


def _stream_limit_error(
    scope: str, subject: str, limit: int, current: int, limited_by: str
) -> RateLimited:
    return RateLimited(
        f"{subject} has {current} open streams, and {limited_by} is {limit}. "
        f"Close one, or try again in {STREAM_RETRY_SECONDS} seconds.",
        retry_after=STREAM_RETRY_SECONDS,
        scope=scope,
        quota="streams",
        limit=limit,
        current=current,
    )
