"""The rates that are shown: the count of the last whole second."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.in_process import TENANT, Bench
from wopr.process.settings import Settings
from wopr.protocol.errors import RateLimited
from wopr.runs.quotas import Quotas

pytestmark = pytest.mark.anyio


class Seconds:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.25

    def __call__(self) -> float:
        return self.now


class Counted:
    """Quotas with such a clock, and their rates."""

    def __init__(self, ours: Bench, *, limit: int, events: int = 0) -> None:
        settings = Settings(
            api_keys="", quota_requests_per_second=limit, quota_events_per_second=events
        )
        self.clock = Seconds()
        self.quotas = Quotas(ours.host.store, settings, ours.clock, self.clock)

    def ask(self, times: int, key: str = "one") -> None:
        """Make requests evenly over one second."""
        for _ in range(times):
            self.clock.now += 1 / times
            with suppress(RateLimited):
                self.quotas.count_request(TENANT, key)

    async def rate(self, quota: str, scope: str = "tenant", key: str = "one") -> int:
        report = await self.quotas.report(TENANT, key)
        [found] = [use for use in report.quotas if (use.quota, use.scope) == (quota, scope)]
        return found.current


@pytest.mark.parametrize("rate", [40, 90])
async def test_requests_of_the_last_second_are_shown(ours: Bench, rate: int) -> None:
    counted = Counted(ours, limit=100)

    for _ in range(4):
        counted.ask(rate)

    assert abs(await counted.rate("requestsPerSecond") - rate) <= 1
    assert abs(await counted.rate("requestsPerSecond", "key") - rate) <= 1


async def test_requests_of_a_tenant_are_those_of_all_its_keys(ours: Bench) -> None:
    counted = Counted(ours, limit=100)
    counted.clock.now = 1000.0
    for key, times in (("one", 3), ("two", 5)):
        for _ in range(times):
            counted.quotas.count_request(TENANT, key)

    counted.clock.now = 1001.5

    assert await counted.rate("requestsPerSecond") == 8
    assert await counted.rate("requestsPerSecond", "key", "one") == 3
    assert await counted.rate("requestsPerSecond", "key", "two") == 5


async def test_refused_requests_are_not_shown(ours: Bench) -> None:
    counted = Counted(ours, limit=100)

    for _ in range(5):
        counted.ask(400)

    assert abs(await counted.rate("requestsPerSecond") - 100) <= 1
    assert abs(await counted.rate("requestsPerSecond", "key") - 100) <= 1


@pytest.mark.parametrize("limit", [0, 5, 10_000])
async def test_events_of_the_last_second_are_shown_at_any_limit(ours: Bench, limit: int) -> None:
    counted = Counted(ours, limit=0, events=limit)
    counted.quotas.count_events(TENANT, 300)
    counted.quotas.count_events(TENANT, 7)
    assert await counted.rate("eventsPerSecond") == 0

    counted.clock.now += 1
    assert await counted.rate("eventsPerSecond") == 307

    counted.clock.now += 1
    assert await counted.rate("eventsPerSecond") == 0
