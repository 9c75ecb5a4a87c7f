from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.fork_edges.outside import Effects
from tests.support.in_process import Bench, Clock, Gates, bench, gate_types, numbered
from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ours(
    tmp_path: Path, gates: Gates, effects: Effects, clock: Clock
) -> AsyncIterator[Bench]:
    async def note(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        await ctx.memory.put("notes", "remember this")
        return Completed()

    taking = NodeType(type_id="test.note", execute=note, is_async=True)
    types = (*gate_types(gates), effects.node_type(), taking)
    async with bench(tmp_path, *types, clock=clock, new_id=numbered()) as running:
        yield running
