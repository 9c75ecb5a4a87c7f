"""Destinations of webhooks: checked at registration, and again at every delivery."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.definitions import node
from tests.support.eventually import eventually_async
from tests.support.in_process import TENANT, Bench, Clock, numbered
from wopr.host.assembly import running_host
from wopr.nodes.builtin import builtin_registry
from wopr.process.settings import Settings
from wopr.process.sources import Sources
from wopr.protocol.resources.webhooks import RegisterWebhook
from wopr.store.port.webhooks import DeadLetter

pytestmark = pytest.mark.anyio


class Trap:
    """A socket on loopback that must not be connected to."""

    def __init__(self, family: socket.AddressFamily, address: str) -> None:
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind((address, 0))
        self._socket.listen()
        self._socket.settimeout(0.05)
        self.port: int = self._socket.getsockname()[1]
        self.caught = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        while not self._is_over:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            self.caught += 1
            connection.close()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def trap() -> Iterator[Trap]:
    running = Trap(socket.AF_INET, "127.0.0.1")
    yield running
    running.close()


class Names:
    """A resolver whose answers the test changes."""

    def __init__(self) -> None:
        self.answers: Sequence[str] = ("203.0.114.7",)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self.answers


@pytest.fixture
def names() -> Names:
    return Names()


@asynccontextmanager
async def guarded_host(data_dir: Path, names: Names) -> AsyncIterator[Bench]:
    settings = Settings(
        data_dir=data_dir, api_keys=f"test_key_0123456789:{TENANT}", webhook_attempts=1
    )
    clock = Clock()
    sources = Sources(now=clock, new_id=numbered(), resolver=names)
    registry = builtin_registry(with_conformance=True)
    async with running_host(settings, sources, registry) as host:
        yield Bench(host, clock, data_dir / "wopr.db")


@pytest.fixture
async def ours(tmp_path: Path, names: Names) -> AsyncIterator[Bench]:
    async with guarded_host(tmp_path, names) as running:
        yield running


async def given_up(ours: Bench, webhook_id: str) -> list[DeadLetter]:
    async def has_letters() -> bool:
        page = await ours.host.store.dead_letters(TENANT, webhook_id, None, 10)
        return bool(page.letters)

    await eventually_async(has_letters)
    page = await ours.host.store.dead_letters(TENANT, webhook_id, None, 10)
    return list(page.letters)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["203.0.114.7", "127.0.0.1"],
        ["127.0.0.1", "203.0.114.7"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["0.0.0.0"],
        ["fe80::1%lo"],
    ],
    ids=str,
)
async def test_a_name_that_resolves_to_a_private_address_at_delivery_is_not_called(
    ours: Bench, names: Names, trap: Trap, addresses: list[str]
) -> None:
    request = RegisterWebhook(
        url=f"https://hooks.example.com:{trap.port}/in", events=["run.completed"]
    )
    made = await ours.host.subscriptions.register(TENANT, request)
    names.answers = addresses

    workflow = await ours.register([node("a")])
    await ours.create(workflow)
    [letter] = await given_up(ours, made.webhook_id)

    assert "not allowed" in letter.reason
    assert names.asked == 1
    assert trap.caught == 0


async def test_an_older_subscription_cannot_reach_a_private_address_any_more(
    tmp_path: Path, names: Names, trap: Trap
) -> None:
    free = Settings(
        data_dir=tmp_path, api_keys=f"test_key_0123456789:{TENANT}", allow_private_destinations=True
    )
    async with running_host(free, Sources(new_id=numbered())) as host:
        url = f"http://127.0.0.1:{trap.port}/in"
        request = RegisterWebhook(url=url, events=["run.completed"])
        made = await host.subscriptions.register(TENANT, request)

    async with guarded_host(tmp_path, names) as ours:
        workflow = await ours.register([node("a")])
        await ours.create(workflow)
        [letter] = await given_up(ours, made.webhook_id)

    assert "not allowed" in letter.reason
    assert trap.caught == 0


async def test_an_unresolvable_name_is_a_failed_delivery(ours: Bench, names: Names) -> None:
    request = RegisterWebhook(url="https://hooks.example.com/in", events=["run.completed"])
    made = await ours.host.subscriptions.register(TENANT, request)
    names.answers = ()

    workflow = await ours.register([node("a")])
    await ours.create(workflow)
    [letter] = await given_up(ours, made.webhook_id)

    assert letter.reason == "the request failed: ConnectError"


async def test_a_hundred_failures_in_a_week_end_a_subscription_until_a_redelivery(
    ours: Bench, names: Names
) -> None:
    request = RegisterWebhook(url="https://hooks.example.com/in", events=["run.completed"])
    made = await ours.host.subscriptions.register(TENANT, request)
    names.answers = ["10.0.0.1"]
    workflow = await ours.register([node("a")])

    async def is_failed() -> bool:
        subscription = ours.host.subscriptions.find(TENANT, made.webhook_id)
        assert subscription is not None
        ours.clock.now = max(ours.clock.now, subscription.health.open_until or 0)
        ours.host.dispatcher.wake(TENANT, made.webhook_id)
        # The database is updated a moment later.
        row = await ours.host.store.webhook(TENANT, made.webhook_id)
        return row is not None and row.health.state == subscription.health.state == "failed"

    for _ in range(105):
        await ours.create(workflow)
    await eventually_async(is_failed)
    asked = names.asked
    quiet = await ours.create(workflow)
    row = await ours.host.store.webhook(TENANT, made.webhook_id)
    letters = await ours.host.store.dead_letters(TENANT, made.webhook_id, None, 200)

    assert row is not None
    assert row.health.state == "failed"
    assert names.asked == asked
    assert len(letters.letters) == 105
    assert quiet not in {letter.run_id for letter in letters.letters}
    assert await ours.host.subscriptions.redeliver(TENANT, made.webhook_id) == 105
    refreshed = await ours.host.store.webhook(TENANT, made.webhook_id)
    assert refreshed is not None
    assert refreshed.health.state != "failed"
