"""Destinations that respond slowly must not delay the requests of other tenants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.attacked_host import ALICE, HonestClient, attacked
from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually
from tests.support.webhook_receiver import Handler, Received, receiving
from wopr.protocol.documents import Json, JsonObject

# The defaults of WOPR_MAX_OUTGOING_PER_TENANT and WOPR_MAX_DELIVERIES_PER_TENANT.
OUTGOING = 50
DELIVERIES = 32
PRIVATE = {"WOPR_ALLOW_PRIVATE_DESTINATIONS": "1"}


@dataclass
class Silent:
    """A server that accepts connections and never answers."""

    url: str
    connections: list[socket.socket] = field(default_factory=list[socket.socket])

    def accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)


@contextmanager
def silent() -> Generator[Silent]:
    with socket.create_server(("127.0.0.1", 0), backlog=500) as listener:
        server = Silent(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        thread = threading.Thread(target=server.accept, args=(listener,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in server.connections:
                connection.close()


def subscribe(wire: Wire, url: str) -> None:
    answer = wire.post("/v1/webhooks", {"url": url, "events": ["run.completed"]})
    assert answer.status_code == 201, answer.text


def asks(name: str, url: str, **config: Json) -> JsonObject:
    return node(name, "wopr.http.request", config={"url": url} | config)


def test_hanging_requests_use_no_connection_of_another_tenant(tmp_path: Path) -> None:
    with (
        attacked(tmp_path, **PRIVATE) as host,
        silent() as never,
        receiving() as service,
        host.client() as mallory,
        host.client(ALICE) as alice,
    ):
        hang = [asks(f"n{each}", never.url, timeoutMs=60_000) for each in range(120)]
        hangs = mallory.register(workflow(hang, edges=[]))
        late = mallory.register(workflow([asks("late", service.url, timeoutMs=500)]))
        served = alice.register(workflow([asks("served", service.url)]))

        with HonestClient(host) as honest:
            mallory.create(hangs)
            eventually(lambda: len(never.connections) >= OUTGOING)
            honest.wait_for_round()
            of_alice = alice.finished(alice.create(served))
            of_mallory = mallory.finished(mallory.create(late))

        assert of_alice["status"] == "completed", of_alice
        assert of_mallory["status"] == "failed"
        assert of_mallory["error"]["code"] == "http_error"
        assert f"{OUTGOING} requests" in of_mallory["error"]["message"]
        assert "WOPR_MAX_OUTGOING_PER_TENANT" in of_mallory["error"]["message"]
        assert len(never.connections) == OUTGOING
        assert len(service.requests) == 1
        assert honest.growth_mib < 100
        host.kill_and_recover()


def test_slow_webhook_receivers_do_not_delay_the_deliveries_of_another_tenant(
    tmp_path: Path,
) -> None:
    released = threading.Event()

    def hold(request: Received, handler: Handler) -> None:
        # Longer than the host waits for a response.
        released.wait(20)
        handler.close_connection = True

    with (
        attacked(tmp_path, **PRIVATE) as host,
        receiving(hold) as slow,
        receiving() as quick,
        host.client() as mallory,
        host.client(ALICE) as alice,
    ):
        for _ in range(24):
            subscribe(mallory, slow.url)
        subscribe(alice, quick.url)

        with HonestClient(host) as honest:
            for _ in range(40):
                mallory.create("hello")
            slow.until(lambda requests: len(requests) >= DELIVERIES)
            honest.wait_for_round()
            # Three deadlines of receivers would have to pass before there are so many.
            quick.until_ended(alice.create("hello"))
            begun = len(slow.requests)
        released.set()

        assert begun <= 3 * DELIVERIES
        assert honest.growth_mib < 100
        host.kill_and_recover()
