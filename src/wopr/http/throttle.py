"""Rate limit per key, and a cap on requests under way."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from wopr.protocol.errors import RateLimited, Unavailable

BUCKETS_KEPT = 10_000


class Throttle:
    """Token buckets: a key may make `rate` requests a second, with bursts of twice as many."""

    def __init__(self, *, rate: int, max_in_flight: int, clock: Callable[[], float]) -> None:
        self.in_flight = 0
        self._rate = rate
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self) -> None:
        """Refuse a request, itself counted already, when too much is under way."""
        if self.in_flight > self._max_in_flight:
            raise Unavailable(f"{self._max_in_flight} requests are under way; try again")

    def spend(self, key_id: str) -> None:
        """Take a token of this key, or say when there will be one."""
        if not self._rate:
            return
        now = self._clock()
        burst = 2.0 * self._rate
        tokens, then = self._buckets.get(key_id, (burst, now))
        tokens = min(burst, tokens + (now - then) * self._rate)
        if tokens < 1:
            raise RateLimited(
                f"this key may make {self._rate} requests a second",
                retry_after=1,
                scope="key",
                limit=self._rate,
            )
        self._buckets[key_id] = (tokens - 1, now)
        if len(self._buckets) > BUCKETS_KEPT:
            self._buckets.popitem(last=False)
