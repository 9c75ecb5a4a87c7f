"""A host inside the test with models and tools of the test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.in_process import TENANT, Bench, Clock, numbered
from wopr.agents.models.port import (
    ModelAnswer,
    ModelFault,
    ModelRequest,
    RequestOptions,
    ToolCallPart,
)
from wopr.agents.tools.toolbox import Toolbox
from wopr.host.assembly import running_host
from wopr.process.settings import Settings
from wopr.process.sources import Sources
from wopr.protocol.documents import Json


class TestModels:
    """Answer in order, and record the requests; `able` is what each model can do."""

    __test__ = False

    def __init__(
        self, *answers: ModelAnswer | ModelFault, able: dict[str, frozenset[str]] | None = None
    ) -> None:
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []
        self._able = able

    async def ask(self, request: ModelRequest, asking: RequestOptions) -> ModelAnswer:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, ModelFault):
            raise answer
        return answer

    def capabilities(self, provider: str, model: str) -> frozenset[str] | None:
        return None if self._able is None else self._able[f"{provider}:{model}"]


def says(text: str) -> ModelAnswer:
    return ModelAnswer(text=text, model="m")


def calls(*wishes: tuple[str, Json]) -> ModelAnswer:
    parts = [
        ToolCallPart(id=f"c{place}", name=name, arguments=given)
        for place, (name, given) in enumerate(wishes)
    ]
    return ModelAnswer(tool_calls=parts, finish_reason="tool_calls", model="m")


@asynccontextmanager
async def model_bench(
    data_dir: Path, models: TestModels, tools: Sequence[object] = (), **settings: Json
) -> AsyncGenerator[Bench, None]:
    """Run a host with these models and tools."""
    clock = Clock()
    own = Settings(data_dir=data_dir, api_keys=f"test_key_0123456789:{TENANT}", **settings)
    sources = Sources(now=clock, new_id=numbered())
    toolbox = Toolbox(tools)  # type: ignore[arg-type]  # tests bring tools of all kinds
    async with running_host(own, sources, models=models, toolbox=toolbox) as host:
        yield Bench(host, clock, data_dir / "wopr.db")
