"""Rate limits in one process: token buckets and counters per key."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

# For this time a refusal counts as recent.
RECENT_SECONDS: Final = 300
MAX_BUCKETS: Final = 10_000
# The number of refusals that are kept for one bucket.
MAX_REFUSALS: Final = 10_000

K = TypeVar("K", bound=Hashable)


class _Bucket:
    __slots__ = ("at", "refused", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at
        self.refused: deque[float] | None = None


class TokenBuckets(Generic[K]):
    """Token buckets, one for each key, refilled at `rate` tokens a second up to `burst`.

    A rate of 0 means no limit. Without `burst` a bucket holds the tokens of two seconds. The
    `MAX_BUCKETS` buckets that were used last are kept; a dropped bucket starts full again.

    Example:
        wait = buckets.take(address)
        if wait:
            raise RateLimited("...", retry_after=whole_seconds(wait))
    """

    __slots__ = ("_buckets", "_burst", "_clock", "_rate")

    def __init__(
        self, rate: float, clock: Callable[[], float], *, burst: float | None = None
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._burst = burst
        self._buckets: OrderedDict[K, _Bucket] = OrderedDict()

    def take(self, key: K, *, tokens: float = 1.0, rate: float | None = None) -> float:
        """Take tokens. Return 0.0 if they were available, else the seconds until they are.

        `rate` replaces the rate of all keys for this one. A request for more tokens than a bucket
        can hold is granted if the bucket is full, and the bucket goes below zero.
        """
        per_second = self._rate if rate is None else rate
        if not per_second:
            return 0.0
        bucket = self._refill(key, per_second)
        missing = min(tokens, self._capacity(per_second)) - bucket.tokens
        if missing > 0:
            if bucket.refused is None:
                bucket.refused = deque(maxlen=MAX_REFUSALS)
            bucket.refused.append(bucket.at)
            return missing / per_second
        bucket.tokens -= tokens
        return 0.0

    def charge(self, key: K, tokens: float, *, rate: float | None = None) -> None:
        """Take tokens for something that has already happened; the bucket may go below zero."""
        per_second = self._rate if rate is None else rate
        if per_second:
            self._refill(key, per_second).tokens -= tokens

    def seconds_until_token(self, key: K, *, rate: float | None = None) -> float:
        """Return the seconds until a token is available, without taking it."""
        per_second = self._rate if rate is None else rate
        if not per_second:
            return 0.0
        return max(0.0, (1.0 - self._refill(key, per_second).tokens) / per_second)

    def remaining(self, key: K) -> float:
        """Return the number of tokens of a key; infinity without a limit."""
        return self._refill(key, self._rate).tokens if self._rate else math.inf

    def recent_refusals(self, key: K) -> int:
        """Count the refusals of the last `RECENT_SECONDS`."""
        bucket = self._buckets.get(key)
        if bucket is None or bucket.refused is None:
            return 0
        earliest = self._clock() - RECENT_SECONDS
        while bucket.refused and bucket.refused[0] < earliest:
            bucket.refused.popleft()
        return len(bucket.refused)

    @property
    def rate(self) -> float:
        """Return the default rate in tokens a second."""
        return self._rate

    def _capacity(self, rate: float) -> float:
        return 2.0 * rate if self._burst is None else self._burst

    def _refill(self, key: K, rate: float) -> _Bucket:
        now = self._clock()
        buckets = self._buckets
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = _Bucket(self._capacity(rate), now)
            if len(buckets) > MAX_BUCKETS:
                buckets.popitem(last=False)
            return bucket
        buckets.move_to_end(key)
        bucket.tokens = min(self._capacity(rate), bucket.tokens + (now - bucket.at) * rate)
        bucket.at = now
        return bucket


class _Second:
    __slots__ = ("at", "before", "count")

    def __init__(self, at: int, before: int) -> None:
        self.at = at
        self.before = before
        self.count = 0


class PerSecondCounts(Generic[K]):
    """Counts per key in the last whole second. The `MAX_BUCKETS` latest keys are kept.

    Example:
        counts.add(tenant)
        counts.count_of_last_second(tenant)
    """

    __slots__ = ("_clock", "_counts")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: OrderedDict[K, _Second] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that are kept."""
        return len(self._counts)

    def add(self, key: K, amount: int = 1) -> None:
        """Count actions of a key."""
        second = int(self._clock())
        counted = self._counts.get(key)
        if counted is None or counted.at != second:
            counted = self._begin(key, second)
        counted.count += amount

    def count_of_last_second(self, key: K) -> int:
        """Return the count of a key in the last whole second."""
        return self._before(key, int(self._clock()))

    def _begin(self, key: K, second: int) -> _Second:
        counted = self._counts[key] = _Second(second, self._before(key, second))
        self._counts.move_to_end(key)
        if len(self._counts) > MAX_BUCKETS:
            self._counts.popitem(last=False)
        return counted

    def _before(self, key: K, second: int) -> int:
        counted = self._counts.get(key)
        if counted is None or second > counted.at + 1:
            return 0
        return counted.before if counted.at == second else counted.count


def whole_seconds(wait: float) -> int:
    """Return a wait for the `Retry-After` header: whole seconds, at least one."""
    return max(1, math.ceil(wait))
