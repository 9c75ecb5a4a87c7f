"""The workflows of an agent are found with few definitions in memory."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from tests.support.definitions import node, workflow
from tests.support.rows import workflow as row
from wopr.console.definitions.agents import workflows_using_agent
from wopr.store.port import WorkflowRow, Workflows

pytestmark = pytest.mark.anyio

AGENT = "private.tests.agent"
PINNED = node("a", agent={"agentId": AGENT, "modelClass": "chat"})


class CountedDefinitions:
    """The definitions of one tenant, with counts of how many were read at once and in total."""

    def __init__(self, rows: list[WorkflowRow]) -> None:
        self.rows = rows
        self.most = 0
        self.read = 0

    async def workflows(self, tenant: str, after: str | None, limit: int) -> list[WorkflowRow]:
        found = [row for row in self.rows if row.workflow_id > (after or "")][:limit]
        self.most = max(self.most, len(found))
        self.read += len(found)
        return found

    async def naming(self) -> set[str]:
        return await workflows_using_agent(cast("Workflows", self), "acme", AGENT)


def counted(count: int, *, pinned: range) -> CountedDefinitions:
    nodes = [[PINNED] if number in pinned else [node("a")] for number in range(count)]
    return CountedDefinitions(
        [
            row(f"w{number:03}", body=msgspec.json.encode(workflow(nodes[number])))
            for number in range(count)
        ]
    )


async def test_definitions_are_read_in_small_batches() -> None:
    many = counted(95, pinned=range(93, 95))

    assert await many.naming() == {"w093", "w094"}
    assert (many.read, many.most) == (95, 10)


async def test_the_search_ends_when_enough_workflows_are_found() -> None:
    many = counted(95, pinned=range(95))

    assert len(await many.naming()) == 20
    assert many.read == 20
