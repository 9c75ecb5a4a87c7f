from __future__ import annotations

import os
import random
import time
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import msgspec
import pytest

from tests.fault.checker import Stored, StoredRun
from tests.fault.load import WORDS, Ledger, Load, Page
from tests.support.eventually import eventually_async
from tests.support.fragile_host import FragileHost
from tests.support.host import ACME
from wopr.protocol.documents import to_millis

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "50"))
# A slow machine has fewer restarts, so that the test does not exceed its time limit.
MAX_SECONDS = 150
SEED = int(os.environ.get("FAULT_SEED") or time.time())
SETTLING_SECONDS = 60
# The shortest run timeout of the load's workflows that wait.
SHORTEST_LIFE_MS = 30_000


class KillScenario:
    """One data directory over many restarts of its host."""

    def __init__(self, host: FragileHost, seed: int) -> None:
        self.host = host
        self.chance = random.Random(seed)
        self.ledger = Ledger()

    async def live(self) -> None:
        """Start, check that nothing was lost, keep the host busy, and kill it."""
        if self.chance.random() < 0.2:
            await self.die_while_starting()
        await anyio.to_thread.run_sync(self.host.start)
        await self.recall()
        load = Load(self.host.url, self.ledger, self.chance)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run)
            with anyio.move_on_after(2):
                await load.until_noted(self.chance.randrange(10, 300))
            if self.chance.random() < 0.2:
                self.host.ask_to_stop()
                await anyio.sleep(self.chance.uniform(0, 0.3))
            await anyio.to_thread.run_sync(self.host.kill)
            tasks.cancel_scope.cancel()

    async def die_while_starting(self) -> None:
        """Kill a host during or shortly after its start."""
        self.host.launch()
        await anyio.sleep(self.chance.uniform(0, 1))
        await anyio.to_thread.run_sync(self.host.kill)

    async def recall(self) -> None:
        """Check that everything received before the kill is stored, byte for byte."""
        places, self.ledger.lately = self.ledger.lately, set()
        async with self.client() as client:
            for run_id in {run_id for run_id, _ in places}:
                response = await client.get(
                    f"/v1/runs/{run_id}/events", headers={"Accept": "application/json"}
                )
                assert response.status_code == 200, response.text
                for body in msgspec.json.decode(response.content, type=Page).events:
                    self.ledger.saw(run_id, bytes(body))
        assert places <= self.ledger.lately
        self.ledger.lately.clear()

    async def settle(self) -> None:
        """Repeat unanswered requests, then wait until every run has ended."""
        await anyio.to_thread.run_sync(self.host.start)
        await self.recall()
        async with self.client() as client:
            load = Load(self.host.url, self.ledger, self.chance)
            for key in sorted(self.ledger.unanswered):
                await load.create_with(client, key)
            await self.until_still(client)
            await self.check_pauses(client)
            for run_id in await self.listed(client, "paused"):
                response = await client.post(f"/v1/runs/{run_id}:resume")
                # Its time limit may have passed since it was listed.
                is_over = response.json().get("details", {}).get("runStatus") == "failed"
                assert response.status_code == 202 or is_over, response.text
            await self.until_still(client)
            assert await self.listed(client, "paused") == []

    async def check_pauses(self, client: httpx.AsyncClient) -> None:
        """Check that an acknowledged pause holds until a resume or the run's end."""
        for run_id in self.ledger.paused:
            found = (await client.get(f"/v1/runs/{run_id}")).json()
            assert found["status"] in ("paused", "completed", "failed", "cancelled"), found

    async def until_still(self, client: httpx.AsyncClient) -> None:
        async def is_still() -> bool:
            return not await self.listed(client, "pending,running,cancelling")

        await eventually_async(is_still, SETTLING_SECONDS)

    async def listed(self, client: httpx.AsyncClient, statuses: str) -> list[str]:
        response = await client.get("/v1/runs", params={"status": statuses, "limit": 200})
        assert response.status_code == 200, response.text
        return [item["runId"] for item in response.json()["items"]]

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {ACME}"}
        return httpx.AsyncClient(
            base_url=self.host.url, headers=headers, timeout=60, trust_env=False
        )


async def test_a_repeatedly_killed_host_loses_nothing(tmp_path: Path) -> None:
    print(f"FAULT_SEED={SEED}")
    story = KillScenario(FragileHost(tmp_path / "host", ("--conformance",)), SEED)

    lives = 0
    began = time.monotonic()
    while lives < ROUNDS and time.monotonic() < began + MAX_SECONDS:
        await story.live()
        lives += 1
    await story.settle()

    story.host.check()
    print(f"{lives} lives: {dict(story.ledger.counts)}")
    compare(story.ledger, Stored(story.host.database).runs)


def compare(ledger: Ledger, runs: dict[str, StoredRun]) -> None:
    """Compare what clients received with the store."""
    assert ledger.acknowledged.keys() <= runs.keys()
    for (run_id, sequence), body in ledger.events.items():
        assert runs[run_id].log[sequence].body == body
    for run in runs.values():
        # Nothing here fails by itself: pauses and kills only take time, and time limits continue.
        assert run.row.status in ("completed", "cancelled") or has_run_out_of_time(run), run
    assert {runs[run_id].row.status for run_id in ledger.cancelled} <= {"cancelled"}
    assert not ledger.unanswered
    for key, known in ledger.by_key.items():
        tagged = {run_id for run_id, run in runs.items() if key in run.row.tags}
        assert tagged == known, key
    for run in runs.values():
        compare_results(run)


def has_run_out_of_time(run: StoredRun) -> bool:
    first, last = run.events[0], run.events[-1]
    took_ms = to_millis(last.timestamp) - to_millis(first.timestamp)
    return took_ms >= SHORTEST_LIFE_MS and last.payload["error"]["code"] == "run_timeout"


def compare_results(run: StoredRun) -> None:
    """Check that an interrupted run has the results of every other run."""
    if run.row.status != "completed":
        return
    events = run.events
    if run.row.workflow_id == "conformance-stream-text":
        # An interrupting pause causes a new attempt, which repeats all its output.
        last = max(e.sequence for e in events if e.type == "node.started")
        chunks = [e for e in events if e.type == "output.chunk" and e.sequence > last]
        assert [chunk.payload["chunk"] for chunk in chunks] == WORDS
    if run.row.workflow_id == "conformance-channel-ttl":
        written = [e.payload["value"]["value"] for e in events if e.type == "channel.written"]
        assert written == ["a", "b", "c", "d"]
    if run.row.workflow_id == "conformance-subworkflow-parent":
        assert len(run.dispatched) == 1
