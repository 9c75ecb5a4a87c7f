from __future__ import annotations

import pytest

from tests.support.definitions import node
from tests.support.in_process import TENANT, Bench
from wopr.agents.models.port import ModelFault
from wopr.protocol.errors import QuotaExceeded, RateLimited
from wopr.runs.quotas import PushLimit, QuotaTotal
from wopr.store.port.usage import QuotaRow

pytestmark = pytest.mark.anyio


async def set_quota(ours: Bench, quota: str, amount: int, key_id: str = "") -> None:
    row = QuotaRow(tenant=TENANT, key_id=key_id, quota=quota, amount=amount)
    await ours.host.store.set_quota(row)
    await ours.host.quotas.read()


async def test_an_operator_replaces_the_limit_of_one_tenant(ours: Bench) -> None:
    default = ours.host.quotas.limit("agents", "globex")

    await set_quota(ours, "agents", 7)

    assert ours.host.quotas.limit("agents", TENANT) == 7
    assert ours.host.quotas.limit("agents", "globex") == default


async def test_an_operator_replaces_the_limit_of_one_key(ours: Bench) -> None:
    await set_quota(ours, "streams", 3, key_id="key-1")

    assert ours.host.quotas.limit("streams", TENANT, "key-1") == 3
    assert ours.host.quotas.limit("streams", TENANT, "key-2") != 3


async def test_a_key_that_makes_too_many_requests_is_refused_with_the_time_to_wait(
    ours: Bench,
) -> None:
    await set_quota(ours, "requestsPerSecond", 1, key_id="key-1")

    for _ in range(2):
        ours.host.quotas.count_request(TENANT, "key-1")

    with pytest.raises(RateLimited) as refused:
        ours.host.quotas.count_request(TENANT, "key-1")

    assert refused.value.details["scope"] == "key"
    assert refused.value.details["quota"] == "requestsPerSecond"


async def test_a_tenant_over_its_rate_of_events_starts_no_run(ours: Bench) -> None:
    await set_quota(ours, "eventsPerSecond", 10)
    ours.host.quotas.check_new_run(TENANT)

    ours.host.quotas.count_events(TENANT, 1000)

    assert ours.host.quotas.delay(TENANT) > 0
    with pytest.raises(QuotaExceeded, match="eventsPerSecond"):
        ours.host.quotas.check_new_run(TENANT)


async def test_a_write_beyond_the_stored_bytes_is_refused(ours: Bench) -> None:
    await ours.create(await ours.register([node("only")]))
    await ours.host.quotas.check_write(TENANT)

    await set_quota(ours, "storedBytes", 1)

    with pytest.raises(QuotaExceeded) as refused:
        await ours.host.quotas.check_write(TENANT)
    assert refused.value.details["quota"] == "storedBytes"


async def test_model_tokens_are_counted_for_one_day(ours: Bench) -> None:
    await set_quota(ours, "modelTokensPerDay", 100)
    quotas = ours.host.quotas
    await quotas.add_model_tokens(TENANT, 100)

    with pytest.raises(ModelFault) as refused:
        await quotas.check_model_tokens(TENANT)

    assert refused.value.error.code == "quota_exceeded"
    ours.clock.now += 24 * 60 * 60 * 1000
    await quotas.check_model_tokens(TENANT)


async def test_a_report_has_the_use_and_the_limit_of_each_quota(ours: Bench) -> None:
    await ours.create(await ours.register([node("only")]))
    await set_quota(ours, "workflowVersions", 5)

    report = await ours.host.quotas.report(TENANT, "key-1")

    [versions] = [each for each in report.quotas if each.quota == "workflowVersions"]
    assert (versions.current, versions.limit) == (1, 5)


def test_a_tenant_pushes_twice_its_rate_at_once_and_then_waits() -> None:
    now = 0.0
    pushes = PushLimit(2, lambda: now)
    for _ in range(4):
        pushes.take(TENANT)

    with pytest.raises(RateLimited):
        pushes.take(TENANT)

    now = 0.5
    pushes.take(TENANT)


def test_a_total_counts_the_tenants_that_have_used_up_their_quota() -> None:
    total = QuotaTotal()

    total.add(5, 10)
    total.add(10, 10)
    total.add(0, 3)

    assert (total.used, total.limit, total.exhausted) == (15, 20, 1)
