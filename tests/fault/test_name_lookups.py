"""Names that resolve slowly, with two tenants on one host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.attack.attacked_host import API_KEYS
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually_async
from tests.support.webhook_receiver import Receiver, receiving
from wopr.host.assembly import running_host
from wopr.host.host import Host
from wopr.process.settings import Settings
from wopr.protocol.documents import JsonObject
from wopr.protocol.runs import CreateRun, Owner
from wopr.runs.requests import NewRun

pytestmark = pytest.mark.anyio

SLOW = "slow.example.test"
QUICK = "quick.example.test"
_system = socket.getaddrinfo


class SlowNames:
    """The system's resolver, which blocks for one name until the test releases it."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked = 0
        self.at_once = 0
        self._lock = threading.Lock()
        self._waiting = 0

    def __call__(self, host: str | bytes, port: int, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name == SLOW:
            self._wait()
        known = "127.0.0.1" if name.endswith(".example.test") else name
        return _system(known, port, *args, **options)

    def _wait(self) -> None:
        with self._lock:
            self.asked += 1
            self._waiting += 1
            self.at_once = max(self.at_once, self._waiting)
        self.released.wait(60)
        with self._lock:
            self._waiting -= 1


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    slow = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield slow
    slow.released.set()


@pytest.fixture
def service() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


async def started(host: Host, tenant: str, *nodes: JsonObject) -> str:
    definition = workflow(list(nodes), edges=[])
    await host.library.register(tenant, definition)
    new = NewRun(
        request=CreateRun(workflow_id=definition["id"]),
        compiled=await host.library.newest(tenant, definition["id"]),
        owner=Owner(tenant=tenant),
    )
    return str(msgspec.json.decode(await host.commands.create(new))["runId"])


async def ended(host: Host, tenant: str, run_id: str) -> JsonObject:
    async def is_over() -> bool:
        row = await host.store.run(tenant, run_id)
        return row is not None and row.status in ("completed", "failed")

    await eventually_async(is_over)
    found = await host.run_reader.snapshot(tenant, run_id)
    snapshot: JsonObject = msgspec.json.decode(found.body)
    return snapshot


def asks(name: str, service: Receiver, host: str, timeout_ms: int = 10_000) -> JsonObject:
    url = service.url.replace("127.0.0.1", host)
    return node(name, "wopr.http.request", config={"url": url, "timeoutMs": timeout_ms})


async def test_slow_lookups_of_one_tenant_do_not_stop_the_lookups_of_another(
    tmp_path: Path, names: SlowNames, service: Receiver
) -> None:
    settings = Settings(data_dir=tmp_path, api_keys=API_KEYS, allow_private_destinations=True)
    async with running_host(settings) as host:
        slow = [asks(f"n{each}", service, SLOW, 60_000) for each in range(40)]
        waits = await started(host, "mallory", *slow)

        async def are_waiting() -> bool:
            return names.asked >= settings.max_lookups_per_tenant

        await eventually_async(are_waiting)
        of_alice = await ended(
            host, "alice", await started(host, "alice", asks("a", service, QUICK))
        )
        late = await started(host, "mallory", asks("late", service, f"other.{QUICK}", 500))
        of_mallory = await ended(host, "mallory", late)

        assert of_alice["status"] == "completed", of_alice
        assert of_mallory["error"]["code"] == "http_error"
        assert "WOPR_MAX_LOOKUPS_PER_TENANT" in of_mallory["error"]["message"]
        names.released.set()
        assert (await ended(host, "mallory", waits))["status"] == "completed"
    assert names.at_once == settings.max_lookups_per_tenant


async def test_a_request_does_not_wait_for_its_lookup_and_the_lookup_still_counts(
    tmp_path: Path, names: SlowNames, service: Receiver
) -> None:
    settings = Settings(data_dir=tmp_path, api_keys=API_KEYS, allow_private_destinations=True)
    async with running_host(settings) as host:
        hasty = [asks(f"n{each}", service, SLOW, 200) for each in range(20)]
        over = await ended(host, "mallory", await started(host, "mallory", *hasty))

        assert over["status"] == "failed"
        assert names.asked == settings.max_lookups_per_tenant
        names.released.set()
        again = await started(host, "mallory", asks("again", service, SLOW))
        assert (await ended(host, "mallory", again))["status"] == "completed"
