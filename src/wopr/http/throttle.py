"""Limits of requests in progress, of the bytes of bodies and of requests without a valid key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from wopr.protocol.errors import RateLimited, Unauthenticated, Unavailable
from wopr.security.buckets import BUCKETS_KEPT, TokenBuckets, whole_seconds
from wopr.security.keys import Principal
from wopr.security.proxies import network_of

MINUTE_SECONDS: Final = 60
OPEN_BURST_SECONDS: Final = 4
# One tenant, or one address without a key, may hold this part of the bytes of bodies: a quarter.
# A tenant that has this part of the requests in progress gets more only while half are free.
HOLDER_SHARE: Final = 4


class Throttle:
    """Counts authenticated requests in progress, and the bytes of bodies of requests.

    It refuses more than `max_in_flight` requests, of which one tenant may have half. Bodies that arrive, or whose requests are not
    answered yet, may have `max_incoming_bytes` in all, and those of one holder a quarter of it.
    """

    def __init__(self, *, max_in_flight: int, max_incoming_bytes: int) -> None:
        self.in_flight = 0
        self.incoming_bytes = 0
        self._max_in_flight = max_in_flight
        self._max_incoming_bytes = max_incoming_bytes
        self._incoming_of: dict[str, int] = {}
        self._in_flight_of: dict[str, int] = {}

    def enter(self, tenant: str) -> None:
        """Count a request in progress. Raises `Unavailable` when there are too many."""
        most = self._max_in_flight
        of_tenant = self._in_flight_of.get(tenant, 0)
        if self.in_flight >= most:
            raise Unavailable(f"{most} requests are in progress; try again", limit=most)
        if of_tenant >= max(1, most // HOLDER_SHARE) and 2 * self.in_flight >= most:
            raise Unavailable(
                f"this tenant has {of_tenant} requests in progress, and the host is busy; try again",
                limit=of_tenant,
            )
        self.in_flight += 1
        self._in_flight_of[tenant] = of_tenant + 1

    def leave(self, tenant: str) -> None:
        """Count a request no longer."""
        self.in_flight -= 1
        left = self._in_flight_of[tenant] - 1
        if left:
            self._in_flight_of[tenant] = left
        else:
            del self._in_flight_of[tenant]

    def receive(self, holder: str, size: int) -> None:
        """Count bytes of a body. Raises `Unavailable` when there are too many."""
        of_holder = self._incoming_of.get(holder, 0) + size
        if (
            self.incoming_bytes + size > self._max_incoming_bytes
            or of_holder > self._max_incoming_bytes // HOLDER_SHARE
        ):
            raise Unavailable(
                "too many large request bodies are being received or processed; try again",
                limit=self._max_incoming_bytes,
            )
        self.incoming_bytes += size
        self._incoming_of[holder] = of_holder

    def release(self, holder: str, size: int) -> None:
        """Count the bytes of a body no longer: its request is answered, or was given up."""
        self.incoming_bytes -= size
        left = self._incoming_of[holder] - size
        if left:
            self._incoming_of[holder] = left
        else:
            del self._incoming_of[holder]


class FailedAuthLimit:
    """Limits how often one address may fail to authenticate: `limit` times a minute; 0 is no limit.

    Beyond the limit an address is told to wait. A valid key still works, because an address may be
    shared. The keys of such an address are looked up one at a time, so that guesses do not take the
    store from others.

    Requests that need no key have a limit of their own: `open_rate` a second from one address, and
    bursts of four seconds. An IPv6 address stands for its /64.
    """

    def __init__(self, limit: int, open_rate: int, clock: Callable[[], float]) -> None:
        self._open_requests: TokenBuckets[str] = TokenBuckets(
            open_rate, clock, burst=OPEN_BURST_SECONDS * open_rate
        )
        self._limit = limit
        self._clock = clock
        self._failures: TokenBuckets[str] = TokenBuckets(limit / MINUTE_SECONDS, clock, burst=limit)
        # Addresses beyond the limit, and until when.
        self._until: OrderedDict[str, float] = OrderedDict()
        self._one_at_a_time = anyio.Lock()

    def spend_open(self, address: str) -> None:
        """Count a request that needs no key. Raises `RateLimited` beyond the limit."""
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
        """Find the principal of a key. Raises `RateLimited` for a failure beyond the limit."""
        try:
            if self._until and self._is_beyond(network_of(address)):
                async with self._one_at_a_time:
                    return await find()
            return await find()
        except Unauthenticated:
            self._count(network_of(address))
            raise

    def _is_beyond(self, address: str) -> bool:
        until = self._until.get(address, 0.0)
        if until and until <= self._clock():
            del self._until[address]
            return False
        return until > 0.0

    def _count(self, address: str) -> None:
        wait = self._failures.take(address)
        if not wait:
            return
        self._until[address] = self._clock() + wait
        if len(self._until) > BUCKETS_KEPT:
            self._until.popitem(last=False)
        seconds = whole_seconds(wait)
        raise RateLimited(
            f"Too many requests with a wrong or missing key from this address. "
            f"Use a valid key, or try again in {seconds} s.",
            retry_after=seconds,
            scope="address",
            limit=self._limit,
        ) from None
