"""Clients that keep a host busy, and record everything that they receive."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

import anyio
import httpx
import msgspec

from tests.support.host import ACME
from wopr.protocol.documents import JsonObject

WORDS = ["the", " only", " way", " to", " win", " is", " not", " to", " play"]
LONGEST_WAIT_MS = 2500
THAT_WAIT = {
    f"conformance-{name}" for name in ("delay", "cancellable", "channel-ttl", "stream-text")
}
TERMINAL = {"completed", "failed", "cancelled"}


class Header(msgspec.Struct):
    """The parsed members of an event; its bytes are kept unchanged."""

    sequence: int
    type: str


class Page(msgspec.Struct):
    """A page of events with the bytes of every event."""

    events: list[msgspec.Raw]


@dataclass
class Ledger:
    """Everything acknowledged and received, over all restarts of the host."""

    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    cancelled: set[str] = field(default_factory=set[str])
    paused: set[str] = field(default_factory=set[str])
    by_key: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    unanswered: set[str] = field(default_factory=set[str])
    events: dict[tuple[str, int], bytes] = field(default_factory=dict[tuple[str, int], bytes])
    lately: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    counts: Counter[str] = field(default_factory=Counter[str])

    def saw(self, run_id: str, body: bytes) -> str:
        """Record an event; a repeated one must have the same bytes."""
        event = msgspec.json.decode(body, type=Header)
        place = (run_id, event.sequence)
        assert self.events.setdefault(place, body) == body, f"two versions of {place}"
        self.lately.add(place)
        self.counts["event"] += 1
        return event.type


class Load:
    """The clients of a host between two restarts."""

    def __init__(self, url: str, ledger: Ledger, chance: random.Random) -> None:
        self._url = url
        self._ledger = ledger
        self._chance = chance
        self._open: list[str] = []
        self._waiting: list[str] = []
        self.noted = 0
        self._heard = anyio.Event()

    async def run(self, writers: int = 4, readers: int = 4) -> None:
        """Keep the host busy until cancelled; connection errors are ignored."""
        async with anyio.create_task_group() as tasks:
            for _ in range(writers):
                tasks.start_soon(self._forever, self._write)
            for _ in range(readers):
                tasks.start_soon(self._forever, self._read)

    async def until_noted(self, count: int) -> None:
        """Wait until so many responses and events have arrived."""
        while self.noted < count:
            await self._heard.wait()

    def _note(self) -> None:
        self.noted += 1
        heard, self._heard = self._heard, anyio.Event()
        heard.set()

    async def _forever(self, act: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
        headers = {"Authorization": f"Bearer {ACME}"}
        async with httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=20, trust_env=False
        ) as client:
            while True:
                try:
                    await act(client)
                except httpx.TransportError:
                    await anyio.sleep(0.01)

    # Writing

    async def _write(self, client: httpx.AsyncClient) -> None:
        actions = [self._create, self._create_once, self._cancel, self._pause, self._resume]
        [action] = self._chance.choices(actions, weights=[8, 4, 2, 2, 2])
        await action(client)

    async def _create(self, client: httpx.AsyncClient) -> None:
        body = new_run(self._chance)
        response = await client.post("/v1/runs", json=body)
        if response.status_code != 503:
            assert response.status_code == 201, response.text
            self._acknowledge(response.json()["runId"], body["workflowId"])

    async def _create_once(self, client: httpx.AsyncClient) -> None:
        """Send the same request twice at the same time, or repeat an unanswered one."""
        key = str(UUID(int=self._chance.getrandbits(128)))
        if self._ledger.unanswered and self._chance.random() < 0.5:
            key = self._chance.choice(sorted(self._ledger.unanswered))
        self._ledger.unanswered.add(key)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.create_with, client, key)
            tasks.start_soon(self.create_with, client, key)

    async def create_with(self, client: httpx.AsyncClient, key: str) -> None:
        """Create the run of a key."""
        body = {"workflowId": "conformance-idempotent", "inputs": {"nonce": key}, "tags": [key]}
        with suppress(httpx.TransportError):
            response = await client.post("/v1/runs", json=body, headers={"Idempotency-Key": key})
            if response.status_code == 503:
                return
            assert response.status_code == 201, response.text
            run_id = response.json()["runId"]
            self._ledger.by_key.setdefault(key, set()).add(run_id)
            self._ledger.unanswered.discard(key)
            self._acknowledge(run_id, "conformance-idempotent")

    def _acknowledge(self, run_id: str, workflow_id: str) -> None:
        self._ledger.acknowledged[run_id] = workflow_id
        self._ledger.counts["acknowledged"] += 1
        self._open = [*self._open[-12:], run_id]
        if workflow_id in THAT_WAIT:
            self._waiting = [*self._waiting[-6:], run_id]
        self._note()

    async def _cancel(self, client: httpx.AsyncClient) -> None:
        if not self._waiting:
            return
        run_id = self._chance.choice(self._waiting)
        response = await client.post(f"/v1/runs/{run_id}/cancel", json={"reason": "enough"})
        if response.status_code == 200 and response.json()["status"] == "cancelled":
            self._ledger.cancelled.add(run_id)
            self._ledger.paused.discard(run_id)
            self._ledger.counts["cancelled"] += 1
            self._note()

    async def _pause(self, client: httpx.AsyncClient) -> None:
        if not self._waiting:
            return
        run_id = self._chance.choice(self._waiting)
        policy = self._chance.choice(["immediate", "drain-current-node"])
        response = await client.post(f"/v1/runs/{run_id}:pause", json={"drainPolicy": policy})
        assert response.status_code in (202, 409, 503), response.text
        if response.status_code == 202:
            self._ledger.paused.add(run_id)
            self._ledger.counts[policy] += 1
            self._note()

    async def _resume(self, client: httpx.AsyncClient) -> None:
        if not self._ledger.paused:
            return
        run_id = self._chance.choice(sorted(self._ledger.paused))
        # With or without a response, the run may continue from now on.
        self._ledger.paused.discard(run_id)
        response = await client.post(f"/v1/runs/{run_id}:resume")
        assert response.status_code in (202, 409, 503), response.text
        self._ledger.counts["resumed"] += response.status_code == 202

    # Reading

    async def _read(self, client: httpx.AsyncClient) -> None:
        if not self._open:
            await anyio.sleep(0.005)
            return
        run_id = self._chance.choice(self._open)
        read = self._chance.choice([self._stream, self._poll])
        with anyio.move_on_after(1):
            await read(client, run_id)

    async def _stream(self, client: httpx.AsyncClient, run_id: str) -> None:
        path = f"/v1/runs/{run_id}/events"
        async with client.stream("GET", path, params={"streamMode": "debug"}) as response:
            if response.status_code == 200:
                async for body in frames(response):
                    self._ledger.saw(run_id, body)
                    self._note()

    async def _poll(self, client: httpx.AsyncClient, run_id: str) -> None:
        last = self._chance.randrange(-1, 3)
        response = await client.get(
            f"/v1/runs/{run_id}/events/poll", params={"lastSequence": last, "timeout": 1}
        )
        if response.status_code == 200:
            for body in msgspec.json.decode(response.content, type=Page).events:
                self._ledger.saw(run_id, bytes(body))
                self._note()


async def frames(response: httpx.Response) -> AsyncIterator[bytes]:
    """Return the data of every complete SSE frame."""
    pending = b""
    async for part in response.aiter_raw():
        pending += part
        *blocks, pending = pending.split(b"\n\n")
        for block in blocks:
            if not block.startswith(b":"):
                yield block.split(b"\ndata: ", 1)[1]


def new_run(chance: random.Random) -> JsonObject:
    """Return a request for one of the runs that test durability best."""
    wait = chance.randrange(50, 500)
    stream = {"tokens": WORDS, "delayMsPerToken": chance.choice([0, 5, 30])}
    requests: list[JsonObject] = [
        {"workflowId": "conformance-noop"},
        {"workflowId": "conformance-multi-node"},
        {"workflowId": "conformance-delay", "inputs": {"delayMs": wait}},
        {"workflowId": "conformance-cancellable", "inputs": {"delayMs": LONGEST_WAIT_MS}},
        {"workflowId": "conformance-subworkflow-parent"},
        {"workflowId": "conformance-channel-ttl"},
        {
            "workflowId": "conformance-stream-text",
            "configurable": {"mockProvider": {"id": "stream-text", "config": stream}},
        },
    ]
    return chance.choice(requests)
