from __future__ import annotations

import math

import pytest

from wopr.security import buckets
from wopr.security.buckets import MAX_BUCKETS, PerSecondCounts, TokenBuckets, whole_seconds


class Clock:
    """A clock that the test controls."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_twice_the_rate_is_granted_at_once_and_then_the_rate() -> None:
    clock = Clock()
    limit = TokenBuckets[str](5, clock)

    assert [limit.take("acme") > 0 for _ in range(11)] == [False] * 10 + [True]
    clock.now += 1
    assert [limit.take("acme") > 0 for _ in range(6)] == [False] * 5 + [True]


def test_the_burst_can_be_configured() -> None:
    clock = Clock()
    limit = TokenBuckets[str](2, clock, burst=3)

    assert [limit.take("key") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.5
    assert [limit.take("key") for _ in range(2)] == [0, 0.5]
    clock.now += 60
    assert [limit.take("key") for _ in range(4)] == [0, 0, 0, 0.5]


def test_every_key_has_its_own_bucket() -> None:
    limit = TokenBuckets[str](1, Clock(), burst=1)

    assert [limit.take(key) for key in ("acme", "umbrella", "acme")] == [0, 0, 1]


def test_the_wait_is_the_time_until_a_token_is_available() -> None:
    clock = Clock()
    limit = TokenBuckets[str](0.1, clock, burst=1)
    limit.take("key")

    wait = limit.take("key")
    clock.now += wait

    assert wait == pytest.approx(10)
    assert limit.take("key") == 0


def test_reading_the_wait_uses_no_token() -> None:
    limit = TokenBuckets[str](1, Clock(), burst=1)

    assert [limit.seconds_until_token("key") for _ in range(3)] == [0, 0, 0]
    limit.take("key")
    assert [limit.seconds_until_token("key") for _ in range(3)] == [1, 1, 1]


def test_a_key_can_have_its_own_rate() -> None:
    limit = TokenBuckets[str](1, Clock())

    assert [limit.take("big", rate=2) for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert [limit.take("free", rate=0) for _ in range(100)] == [0] * 100
    assert limit.take("small") == 0


def test_a_full_bucket_grants_more_tokens_than_it_holds_and_goes_negative() -> None:
    clock = Clock()
    limit = TokenBuckets[str](10, clock)

    assert limit.take("acme", tokens=50) == 0
    assert limit.take("acme") == pytest.approx(3.1)
    clock.now += 3.1
    assert limit.take("acme") == 0


def test_a_rate_of_zero_is_no_limit() -> None:
    limit = TokenBuckets[str](0, Clock())

    assert [limit.take("acme") for _ in range(1000)] == [0] * 1000
    assert limit.remaining("acme") == math.inf


def test_recent_refusals_are_counted_and_old_ones_are_not() -> None:
    clock = Clock()
    limit = TokenBuckets[str](1, clock, burst=1)
    for _ in range(3):
        limit.take("acme")

    before = limit.recent_refusals("acme")
    clock.now += buckets.RECENT_SECONDS + 1

    assert (before, limit.recent_refusals("acme")) == (2, 0)


def test_the_least_recently_used_bucket_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_BUCKETS", 2)
    limit = TokenBuckets[str](1, Clock(), burst=1)
    for key in ("a", "b", "a", "c"):
        limit.take(key)

    assert limit.take("a") == 1
    assert limit.take("b") == 0


@pytest.mark.parametrize(("wait", "told"), [(0.01, 1), (1, 1), (1.2, 2), (60, 60)])
def test_a_wait_is_in_whole_seconds_and_never_too_short(wait: float, told: int) -> None:
    assert whole_seconds(wait) == told


def test_the_number_of_keys_counted_per_second_is_limited() -> None:
    counts: PerSecondCounts[int] = PerSecondCounts(lambda: 5.0)

    for key in range(MAX_BUCKETS + 100):
        counts.add(key)

    assert len(counts) == MAX_BUCKETS
