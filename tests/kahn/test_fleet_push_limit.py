from __future__ import annotations

import pytest

from tests.security.test_token_buckets import Clock
from wopr.protocol.errors import RateLimited
from wopr.runs.quotas import PushLimit


def test_a_refused_push_names_its_quota_and_when_to_retry() -> None:
    pushes = PushLimit(1, Clock())
    for _ in range(2):
        pushes.take("acme")

    with pytest.raises(RateLimited) as refused:
        pushes.take("acme")

    assert refused.value.retry_after == 1
    assert refused.value.details["quota"] == "pushesPerSecond"


def test_a_snapshot_uses_no_token_and_drops_old_refusals() -> None:
    clock = Clock()
    pushes = PushLimit(1, clock)
    for _ in range(2):
        pushes.take("acme")
    for _ in range(2):
        with pytest.raises(RateLimited):
            pushes.take("acme")

    first, second = pushes.snapshot("acme"), pushes.snapshot("acme")
    clock.now += 301
    later = pushes.snapshot("acme")

    assert first == second
    assert first is not None
    assert later is not None
    assert (first.remaining_tokens, first.recent_throttled_count) == (0, 2)
    assert (later.remaining_tokens, later.recent_throttled_count) == (2, 0)


def test_without_a_limit_there_is_no_snapshot() -> None:
    assert PushLimit(0, Clock()).snapshot("acme") is None
