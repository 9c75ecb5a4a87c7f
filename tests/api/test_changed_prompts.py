"""A replay with another prompt than the run had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.hosted import hosted
from wopr import Agent, Workflow, tool
from wopr.testing import call, say, scripted

pytestmark = pytest.mark.anyio


def desk(*, told: str) -> Workflow[dict[str, Any], dict[str, Any]]:
    """Return an agent with one tool of this description."""

    @tool(name="look_up", description=told)
    async def look_up(order: str) -> str:
        return f"{order} is on its way"

    agent = Agent("acme.desk", model="openai:small", tools=[look_up])
    flow = Workflow("look-up")
    flow.agent("ask", agent, prompt="Where is order 7?")
    return flow


@pytest.mark.parametrize("told", ["Find an order.", "Find an order, and say when it comes."])
async def test_a_replay_compares_a_changed_tool_prompt_without_a_model_call(
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
    # The run used two steps of the script; a third would fail.
    assert len(models.requests) == 2
