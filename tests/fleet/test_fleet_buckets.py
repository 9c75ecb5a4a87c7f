from __future__ import annotations

import pytest

from wopr.protocol.errors import RateLimited
from wopr.runtime.buckets import BUCKETS_KEPT, TokenBuckets


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_tenant_may_push_twice_its_rate_at_once_and_its_rate_from_then_on() -> None:
    clock = Clock()
    buckets = TokenBuckets(5, clock)

    assert [buckets.allow("acme") for _ in range(11)] == [True] * 10 + [False]
    clock.now += 1
    assert [buckets.allow("acme") for _ in range(6)] == [True] * 5 + [False]


def test_tenants_do_not_spend_each_other_s_tokens() -> None:
    buckets = TokenBuckets(1, Clock())
    for _ in range(3):
        buckets.allow("acme")

    assert buckets.allow("umbrella")


def test_a_refusal_says_in_whole_seconds_when_there_is_a_token() -> None:
    buckets = TokenBuckets(1, Clock())
    for _ in range(2):
        buckets.spend("acme")

    with pytest.raises(RateLimited) as refused:
        buckets.spend("acme")

    assert refused.value.retry_after == 1


def test_a_snapshot_spends_nothing_and_forgets_old_refusals() -> None:
    clock = Clock()
    buckets = TokenBuckets(1, clock)
    for _ in range(4):
        buckets.allow("acme")

    first, second = buckets.snapshot("acme"), buckets.snapshot("acme")
    clock.now += 301
    later = buckets.snapshot("acme")

    assert first == second
    assert first is not None
    assert later is not None
    assert (first.remaining_tokens, first.recent_throttled_count) == (0, 2)
    assert (later.remaining_tokens, later.recent_throttled_count) == (2, 0)


def test_a_rate_of_nothing_is_no_limit() -> None:
    buckets = TokenBuckets(0, Clock())

    assert all(buckets.allow("acme") for _ in range(1000))
    assert buckets.snapshot("acme") is None


def test_no_more_buckets_are_kept_than_are_good_for_the_memory() -> None:
    buckets = TokenBuckets(1, Clock())
    for _ in range(2):
        buckets.spend("first")

    for number in range(BUCKETS_KEPT):
        buckets.allow(str(number))

    assert buckets.allow("first")
