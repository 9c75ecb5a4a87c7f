"""Which workflows name an agent is found with few definitions in memory."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from tests.contract.builders import workflow as row
from tests.wire.definitions import node, workflow
from wopr.console.agent_pages import workflows_naming
from wopr.store.port import WorkflowRow, Workflows

pytestmark = pytest.mark.anyio

AGENT = "private.tests.agent"
PINNED = node("a", agent={"agentId": AGENT, "modelClass": "chat"})


class Shelf:
    """The definitions of one tenant, and how many were read at once and in all."""

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
        return await workflows_naming(cast("Workflows", self), "acme", AGENT)


def shelf(count: int, *, pinned: range) -> Shelf:
    nodes = [[PINNED] if number in pinned else [node("a")] for number in range(count)]
    return Shelf(
        [
            row(f"w{number:03}", body=msgspec.json.encode(workflow(nodes[number])))
            for number in range(count)
        ]
    )


async def test_definitions_are_read_a_few_at_a_time() -> None:
    many = shelf(95, pinned=range(93, 95))

    assert await many.naming() == {"w093", "w094"}
    assert (many.read, many.most) == (95, 10)


async def test_the_search_ends_with_as_many_workflows_as_are_shown() -> None:
    many = shelf(95, pinned=range(95))

    assert len(await many.naming()) == 20
    assert many.read == 20
