"""Open streams: how many a key, a tenant and a process may have, and when they are ended.

A stream is an answer that may take as long as its reader likes: server-sent events, a long poll
that waits, a request of an MCP client, a document that is written piece by piece. Streams are
counted apart from the requests in progress, so that they take no room from requests.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio
import structlog

from wopr.protocol.errors import RateLimited, Unauthenticated, WoprError
from wopr.security.keys import Principal

# The most that is written to a connection at once. Uvicorn keeps one chunk above 64 KiB.
CHUNK_BYTES: Final = 32 * 1024
# How often the credentials of open streams are checked. Together with the time for which a key
# is trusted without a look at the store this is less than a second.
CHECK_SECONDS: Final = 0.4
# How many credentials are checked at once.
CHECKS_AT_ONCE: Final = 16
_RETRY_SECONDS: Final = 5

# The limit of a quota of a tenant, or of a key of it: quota, tenant, key id.
QuotaOf: TypeAlias = Callable[[str, str, str], int]

log = structlog.get_logger("wopr.http")


@dataclass(slots=True, eq=False)
class OpenStream:
    """A stream, whose credential it was opened with, and what is being written to it."""

    principal: Principal
    # What identifies the key or the session, and the check that it is still valid.
    credential: str
    check: Callable[[], Awaitable[object]]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    # Why the stream was ended by the host; None while it goes on.
    reason: WoprError | None = None
    # The piece that is being written, and how many were written before.
    writing: bytes | None = None
    written: int = 0
    # The number of written pieces at the last check, and at how many checks it was the same.
    seen: int = 0
    blocked_checks: int = 0

    def end(self, reason: WoprError) -> None:
        """End the stream from another task."""
        self.reason = reason
        self.scope.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest numbers of open streams, and the setting that the one of a key comes from."""

    per_key: int
    per_tenant: int
    per_process: int
    key_setting: str = "max_streams_per_key"


class StreamLimits:
    """Counts open streams and refuses one too many.

    `quota_of` gives the limit of a tenant, or of a key of it, in place of those for all; 0 is no
    limit.
    """

    def __init__(self, limits: Limits, quota_of: QuotaOf | None = None) -> None:
        self._limits = limits
        self._quota_of = quota_of
        self._open: set[OpenStream] = set()
        self._by_key: Counter[tuple[str, str]] = Counter()
        self._by_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        """The number of open streams of this process."""
        return len(self._open)

    def of_tenant(self, tenant: str) -> int:
        """The number of open streams of a tenant."""
        return self._by_tenant[tenant]

    def of_key(self, tenant: str, key_id: str) -> int:
        """The number of open streams of a key."""
        return self._by_key[tenant, key_id]

    @property
    def limits(self) -> Limits:
        """The largest numbers."""
        return self._limits

    def admit(self, principal: Principal) -> None:
        """Refuse one more stream of a key that has enough of them, or whose tenant has."""
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
            raise _refusal("key", "This key", per_key, count, of_key)
        if (count := self._by_tenant[tenant]) >= per_tenant:
            raise _refusal("tenant", "This tenant", per_tenant, count, of_tenant)
        if (count := len(self._open)) >= limits.per_process:
            raise _refusal("global", "This host", limits.per_process, count, "max_streams")

    @contextmanager
    def open(
        self, principal: Principal, credential: str, check: Callable[[], Awaitable[object]]
    ) -> Generator[OpenStream, None, None]:
        """Count a stream for as long as the block lasts. Raises `RateLimited` for one too many."""
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
            # A key without streams takes no memory.
            if not self._by_key[key]:
                del self._by_key[key]
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]

    async def end_unauthorised(self) -> None:
        """End the streams whose key was revoked or expired, or whose session was signed out."""
        by_credential: dict[str, list[OpenStream]] = {}
        for stream in self._open:
            by_credential.setdefault(stream.credential, []).append(stream)
        # The workers share it, so that each credential is checked once.
        unchecked = iter(by_credential.values())
        async with anyio.create_task_group() as tasks:
            for _ in range(min(CHECKS_AT_ONCE, len(by_credential))):
                tasks.start_soon(_end_unauthorised, unchecked, tasks.cancel_scope)

    def end_blocked(self, most_bytes: int) -> None:
        """End streams that wait for their readers, the longest first, while they hold too much."""
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
                f"Readers hold {total} bytes, and max_stream_buffer_bytes is {most_bytes}. Read "
                f"faster, or try again in {_RETRY_SECONDS} seconds.",
                retry_after=_RETRY_SECONDS,
                scope="global",
                limit=most_bytes,
                current=total,
            )
            total -= held.pop(id(stream.writing), 0)
            log.warning("stream closed: its reader is too slow", key_id=stream.principal.key_id)
            stream.end(reason)


async def watch_streams(pools: Iterable[StreamLimits], most_buffered: Callable[[], int]) -> None:
    """Check the open streams until cancelled; `most_buffered` is how many bytes they may hold."""
    while True:
        await anyio.sleep(CHECK_SECONDS)
        for pool in pools:
            pool.end_blocked(most_buffered())
            await pool.end_unauthorised()


async def _end_unauthorised(
    unchecked: Iterator[list[OpenStream]], scope: anyio.CancelScope
) -> None:
    """Check credentials one after another, and end the streams of those that are not valid."""
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


def _refusal(scope: str, subject: str, limit: int, current: int, limited_by: str) -> RateLimited:
    return RateLimited(
        f"{subject} has {current} open streams, and {limited_by} is {limit}. "
        f"Close one, or try again in {_RETRY_SECONDS} seconds.",
        retry_after=_RETRY_SECONDS,
        scope=scope,
        quota="streams",
        limit=limit,
        current=current,
    )
