"""Conditions evaluated in subprocesses, and what is repeated when their results arrive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.definitions import edge, node
from tests.support.in_process import bench, numbered
from wopr.engine.outcome import Completed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.anyio


async def test_a_node_is_executed_once_with_any_number_of_large_conditions(
    tmp_path: Path,
) -> None:
    executed: list[str] = []

    def numbers(ctx: NodeContext, config: JsonObject, inputs: JsonObject) -> Completed:
        executed.append(ctx.node_id)
        return Completed({"v": [1] * 20_000})

    never = [{"type": "expression", "expression": f"size(output.v) < {n}"} for n in range(1, 6)]
    edges = [edge("a", "b", id=f"e{n}", condition=each) for n, each in enumerate(never)]

    async with bench(
        tmp_path, NodeType(type_id="test.numbers", execute=numbers), new_id=numbered()
    ) as ours:
        name = await ours.register([node("a", "test.numbers"), node("b")], edges=edges)
        run_id = await ours.create(name)
        await ours.until(run_id, "completed")
        types = await ours.types(run_id)

    assert "node.skipped" in types
    assert executed == ["a"]
