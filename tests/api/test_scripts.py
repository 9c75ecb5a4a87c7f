from __future__ import annotations

from collections.abc import Callable

import pytest

from wopr import Agent, RunFailed, Workflow
from wopr.agents.models.port import ModelAnswer
from wopr.testing import ModelFault, ModelRequest, ScriptedModels, memory_host, say, scripted
from wopr.testing.models import Step

pytestmark = pytest.mark.anyio
CLERK = Agent("acme.desk.clerk", model="openai:gpt-4o-mini")


def talk() -> Workflow[dict[str, object], dict[str, object]]:
    flow = Workflow("talk")
    ask = flow.agent("ask", CLERK, prompt="Hello", config={"maxRetries": 0})
    end = flow.end(text=ask["text"])
    ask >> end
    return flow


async def said(models: ScriptedModels, times: int = 1) -> list[object]:
    async with memory_host(talk(), models=models) as host:
        return [(await (await host.start(talk())).result())["text"] for _ in range(times)]


@pytest.mark.parametrize(
    "step",
    ["hi", say("hi"), ModelAnswer(text="hi", model="m"), lambda request: say("hi")],
    ids=["text", "say", "answer", "function"],
)
async def test_a_step_is_the_answer_of_the_model(step: Step) -> None:
    assert await said(scripted(step)) == ["hi"]


async def test_steps_are_used_in_order_and_requests_are_recorded() -> None:
    models = scripted("one", "two")

    assert await said(models, times=2) == ["one", "two"]
    assert [request.model for request in models.requests] == ["gpt-4o-mini"] * 2


async def test_a_function_in_the_last_step_answers_all_further_requests() -> None:
    def count(request: ModelRequest) -> Step:
        return f"answer {len(models.requests)}"

    models = scripted("first", count)

    assert await said(models, times=3) == ["first", "answer 2", "answer 3"]


async def test_each_model_can_have_its_own_script() -> None:
    models = ScriptedModels({"openai:gpt-4o-mini": ["mine"], "other": ["not mine"]})

    assert await said(models) == ["mine"]


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (scripted(ModelFault("away", retryable=False)), "away"),
        (scripted(other=["hi"]), "the script of openai:gpt-4o-mini has no step left"),
    ],
)
async def test_a_model_without_an_answer_fails_the_run(models: ScriptedModels, told: str) -> None:
    with pytest.raises(RunFailed, match=told):
        await said(models)


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda: scripted(3), "3 is not a step"),  # type: ignore[arg-type]  # what is refused
        (lambda: scripted(triage="hi"), "the script of triage must be a list of steps, not 'hi'"),
        (lambda: scripted(triage=[None]), "None is not a step"),  # type: ignore[list-item]  # refused
    ],
)
def test_an_invalid_script_is_refused_where_it_is_written(
    write: Callable[[], object], told: str
) -> None:
    with pytest.raises(TypeError) as refused:
        write()

    assert told in str(refused.value)
