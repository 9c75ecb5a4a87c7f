"""A replay where the program says something else to the model than the run did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.hosted import hosted
from wopr import Agent, Workflow, tool
from wopr.testing import call, say, scripted

pytestmark = pytest.mark.anyio


def desk(*, told: str) -> Workflow[dict[str, Any], dict[str, Any]]:
    """An agent with one tool, of which the model is told this."""

    @tool(name="look_up", description=told)
    async def look_up(order: str) -> str:
        return f"{order} is on its way"

    agent = Agent("acme.desk", model="openai:small", tools=[look_up])
    flow = Workflow("look-up")
    flow.agent("ask", agent, prompt="Where is order 7?")
    return flow


@pytest.mark.parametrize("told", ["Find an order.", "Find an order, and say when it comes."])
async def test_what_the_model_would_now_be_told_of_a_tool_is_compared_and_it_is_not_asked(
    told: str, tmp_path: Path
) -> None:
    models = scripted(call("look_up", order="7"), say("It is on its way."))
    async with hosted(tmp_path, [desk(told="Find an order.")], models) as host:
        run = await host.start("look-up")
        before = await run.settled()

    async with hosted(tmp_path, [desk(told=told)], models) as host:
        replay = await host.run(run.id).replay()
        after = await replay.settled()
        types = [event.type for event in await replay.log()]

    assert (before.status, after.status) == ("completed", "completed")
    assert after.outputs == before.outputs
    assert types.count("replay.diverged") == (told != "Find an order.")
    # Two steps of the script were taken by the run; a third would fail.
    assert len(models.requests) == 2
