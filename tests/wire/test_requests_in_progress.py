"""Places for requests in progress: how they are shared, and who waits without one."""

from __future__ import annotations

import anyio
import pytest

from wopr.http.idempotency import IN_FLIGHT, MOST_WAITING, Idempotency
from wopr.http.throttle import Throttle
from wopr.protocol.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio


async def test_one_tenant_may_have_half_of_the_requests_in_progress() -> None:
    throttle = Throttle(max_in_flight=40, max_incoming_bytes=0)
    for _ in range(20):
        throttle.enter("mallory")

    with pytest.raises(Unavailable, match="this tenant has 20 requests in progress"):
        throttle.enter("mallory")

    for _ in range(10):
        throttle.enter("alice")
    throttle.leave("mallory")
    throttle.leave("mallory")
    # More than half are taken, so a tenant with more than a quarter waits for its own to end.
    with pytest.raises(Unavailable):
        throttle.enter("mallory")


async def test_many_tenants_together_have_all_requests_in_progress() -> None:
    throttle = Throttle(max_in_flight=40, max_incoming_bytes=0)
    for number in range(40):
        throttle.enter(f"tenant-{number % 8}")

    with pytest.raises(Unavailable, match="40 requests are in progress"):
        throttle.enter("another")
    throttle.leave("tenant-0")
    throttle.enter("another")


async def test_a_bounded_number_of_requests_with_one_key_wait_for_each_other() -> None:
    idempotency = Idempotency()
    served: list[int] = []

    async def serve(number: int) -> None:
        async with idempotency.alone(b"key"):
            served.append(number)

    async with anyio.create_task_group() as tasks, idempotency.alone(b"key"):
        for number in range(MOST_WAITING):
            tasks.start_soon(serve, number)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Conflict) as refused:
            await serve(MOST_WAITING)
        await serve_other(idempotency)

    assert refused.value.code == IN_FLIGHT
    assert sorted(served) == list(range(MOST_WAITING))


async def serve_other(idempotency: Idempotency) -> None:
    """Another key is not held back."""
    async with idempotency.alone(b"another key"):
        pass
