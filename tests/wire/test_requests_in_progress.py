"""The limit of requests in progress: how it is shared, and who waits."""

from __future__ import annotations

import anyio
import pytest

from wopr.http.idempotency import IN_FLIGHT, MAX_WAITING, IdempotentRequests
from wopr.http.limits import RequestLimits
from wopr.protocol.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio


async def test_one_tenant_can_use_half_of_the_requests_in_progress() -> None:
    request_limits = RequestLimits(max_in_flight=40, max_incoming_bytes=0)
    for _ in range(20):
        request_limits.enter("mallory")

    with pytest.raises(Unavailable, match="this tenant has 20 requests in progress"):
        request_limits.enter("mallory")

    for _ in range(10):
        request_limits.enter("alice")
    request_limits.leave("mallory")
    request_limits.leave("mallory")
    # More than half are in use, so a tenant with more than a quarter waits for its own to end.
    with pytest.raises(Unavailable):
        request_limits.enter("mallory")


async def test_two_tenants_together_can_use_all_requests_in_progress() -> None:
    request_limits = RequestLimits(max_in_flight=40, max_incoming_bytes=0)
    for number in range(40):
        request_limits.enter(f"tenant-{number % 8}")

    with pytest.raises(Unavailable, match="40 requests are in progress"):
        request_limits.enter("another")
    request_limits.leave("tenant-0")
    request_limits.enter("another")


async def test_a_limited_number_of_requests_with_one_key_wait_for_each_other() -> None:
    idempotency = IdempotentRequests()
    served: list[int] = []

    async def serve(number: int) -> None:
        async with idempotency.exclusive(b"key"):
            served.append(number)

    async with anyio.create_task_group() as tasks, idempotency.exclusive(b"key"):
        for number in range(MAX_WAITING):
            tasks.start_soon(serve, number)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Conflict) as refused:
            await serve(MAX_WAITING)
        await serve_other(idempotency)

    assert refused.value.code == IN_FLIGHT
    assert sorted(served) == list(range(MAX_WAITING))


async def serve_other(idempotency: IdempotentRequests) -> None:
    """Another key is not delayed."""
    async with idempotency.exclusive(b"another key"):
        pass
