from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.rows import TENANT, batch
from wopr.protocol.errors import SequenceTaken
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

_examples = count()

# A step: which of three writers, on which of two runs, appends how many events.
_steps = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=12
)


class Appender:
    """Append at the assumed end of the log, and read it again only after a conflict."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.heads: dict[str, int] = {}
        self.kept: list[tuple[str, int, bytes]] = []

    async def append(self, run_id: str, length: int) -> None:
        step = batch(run_id, self.heads.get(run_id, 0), length, mark=f"{self.name}:")
        try:
            await self.store.append(TENANT, [step])
        except SequenceTaken:
            row = await self.store.run(TENANT, run_id)
            self.heads[run_id] = row.last_sequence + 1 if row else 0
        else:
            self.heads[run_id] = step.run.last_sequence + 1
            self.kept += [(run_id, event.sequence, event.body) for event in step.events]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rounds=st.lists(_steps, min_size=1, max_size=4))
async def test_every_interleaving_of_appends_gives_logs_without_gaps(
    store: Store, rounds: list[list[tuple[int, int, int]]]
) -> None:
    example = next(_examples)
    run_ids = [f"run-{example}-{n}" for n in range(2)]
    writers = [Appender(store, name) for name in "abc"]

    for steps in rounds:
        await asyncio.gather(*(writers[w].append(run_ids[r], length) for w, r, length in steps))

    kept = sorted(entry for writer in writers for entry in writer.kept)
    for run_id in run_ids:
        stored = await store.read(TENANT, run_id, limit=1000)
        row = await store.run(TENANT, run_id)
        assert [event.sequence for event in stored] == list(range(len(stored)))
        assert (row.last_sequence if row else -1) == len(stored) - 1
        assert [e for e in kept if e[0] == run_id] == [(run_id, e.sequence, e.body) for e in stored]
