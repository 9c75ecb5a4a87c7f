from __future__ import annotations

import pytest

from tests.support.definitions import node
from tests.support.in_process import TENANT, Bench
from wopr.protocol.documents import Json, JsonObject
from wopr.runs.execution.handoffs import RETURN_VIOLATION, TASK_VIOLATION

pytestmark = pytest.mark.anyio

WRITER = "local.desk.writer"
NEEDS_TOPIC: JsonObject = {"type": "object", "required": ["topic"]}


async def install(ours: Bench, **handoff: Json) -> None:
    manifest: JsonObject = {
        "agentId": WRITER,
        "version": "1",
        "persona": "Writer",
        "modelClass": "writing",
        "systemPrompt": "Write.",
        "handoff": handoff,
    }
    await ours.host.agents.register(TENANT, manifest)


async def run(ours: Bench, inputs: JsonObject, **fields: Json) -> tuple[str, str]:
    """Return the status of a run whose node belongs to the agent, and the code of its error."""
    nodes = [node("write", agent={"agentId": WRITER})]
    run_id = await ours.create(await ours.register(nodes, **fields), inputs)
    snapshot = await ours.snapshot(run_id)
    return snapshot["status"], snapshot.get("error", {}).get("code", "")


async def test_a_task_that_fits_the_schema_of_its_agent_is_accepted(ours: Bench) -> None:
    await install(ours, taskSchema=NEEDS_TOPIC)

    assert await run(ours, {"topic": "birds"}) == ("completed", "")


async def test_a_task_that_breaks_the_schema_of_its_agent_fails_the_node(ours: Bench) -> None:
    await install(ours, taskSchema=NEEDS_TOPIC)

    assert await run(ours, {"other": 1}) == ("failed", TASK_VIOLATION)


async def test_outputs_that_break_the_return_schema_fail_the_node(ours: Bench) -> None:
    await install(ours, returnSchema=NEEDS_TOPIC)

    assert await run(ours, {"other": 1}) == ("failed", RETURN_VIOLATION)


async def test_the_agent_that_a_workflow_requires_checks_the_inputs_of_the_run(
    ours: Bench,
) -> None:
    await install(ours, taskSchema=NEEDS_TOPIC)
    metadata: JsonObject = {"requiresAgentId": WRITER}

    assert await run(ours, {"other": 1}, metadata=metadata) == ("failed", TASK_VIOLATION)
