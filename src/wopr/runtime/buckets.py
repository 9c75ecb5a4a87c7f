"""How much each tenant may push: a token bucket per tenant, in this process."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from wopr.protocol.errors import RateLimited
from wopr.protocol.fleet import RateSnapshot

# How long a refusal is counted as recent.
RECENT_SECONDS: Final = 300
BUCKETS_KEPT: Final = 10_000
# Refusals that are remembered of one tenant; more are not told apart.
MOST_REFUSALS: Final = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    refused: deque[float] = field(default_factory=lambda: deque[float](maxlen=MOST_REFUSALS))


class TokenBuckets:
    """A tenant may make `rate` pushes a second, with bursts of twice as many; 0 is no limit."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def allow(self, tenant: str) -> bool:
        """Take a token of a tenant, if there is one."""
        if not self._rate:
            return True
        bucket = self._filled(tenant)
        if bucket.tokens < 1:
            bucket.refused.append(bucket.at)
            return False
        bucket.tokens -= 1
        return True

    def spend(self, tenant: str) -> None:
        """Take a token of a tenant. Raises `RateLimited` that says when there will be one."""
        if not self.allow(tenant):
            missing = 1 - self._filled(tenant).tokens
            raise RateLimited(
                f"this tenant may push {self._rate} times a second",
                retry_after=max(1, math.ceil(missing / self._rate)),
                scope="tenant",
                limit=self._rate,
            )

    def snapshot(self, tenant: str) -> RateSnapshot | None:
        """How much a tenant may push now, at no cost to it; None without a limit."""
        if not self._rate:
            return None
        bucket = self._filled(tenant)
        while bucket.refused and bucket.refused[0] < bucket.at - RECENT_SECONDS:
            bucket.refused.popleft()
        return RateSnapshot(
            capacity=self._capacity,
            refill_rate_per_sec=float(self._rate),
            remaining_tokens=bucket.tokens,
            recent_throttled_count=len(bucket.refused),
            window_s=RECENT_SECONDS,
        )

    @property
    def _capacity(self) -> float:
        return 2.0 * self._rate

    def _filled(self, tenant: str) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = _Bucket(self._capacity, now)
            if len(self._buckets) > BUCKETS_KEPT:
                self._buckets.popitem(last=False)
        bucket.tokens = min(self._capacity, bucket.tokens + (now - bucket.at) * self._rate)
        bucket.at = now
        return bucket
