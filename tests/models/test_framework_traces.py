"""An agent of another framework, traced by that framework, in this host's fleet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.test import TestModel

from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.host import ACME, INGEST, served
from tests.support.otlp import PATH, PATIENT, fleet_lines, of
from tests.support.stored_files import stored
from tests.support.surfaces import leaks

pytestmark = pytest.mark.anyio

PROMPT = "a-prompt-that-stays-where-it-is"


async def test_an_agent_of_pydantic_ai_is_traced_without_its_text(tmp_path: Path) -> None:
    with served(tmp_path / "host", **PATIENT) as host, Wire(host.url, ACME) as wire:
        exporter = OTLPSpanExporter(
            f"{host.url}{PATH}", headers={"Authorization": f"Bearer {INGEST}"}, timeout=60
        )
        provider = TracerProvider()
        # Each span is a separate export, the children before their agent.
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        traced = Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))
        agent = Agent(TestModel(), name="tester", capabilities=[traced])
        agent.tool_plain(double)

        await agent.run(PROMPT)
        provider.shutdown()

        eventually(lambda: bool(wire.document("/api/runs")["runs"]))
        [run] = wire.document("/api/runs")["runs"]
        lines = fleet_lines(wire, run["run_id"])
        [start], [call] = of(lines, "agent_run_start"), of(lines, "tool_invocation")
        [end] = of(lines, "agent_run_end")
        assert (start["agent_id"], start["model"]) == ("tester", "test")
        assert (call["tool_name"], call["ok"]) == ("double", True)
        assert (end["outcome"], end["otel_model_calls"]) == ("converged", 2)
        assert end["otel_input_tokens"] > 0
        assert PROMPT not in json.dumps(lines)
        assert leaks(stored(host), PROMPT) == []


def double(number: int) -> int:
    """Double a number."""
    return 2 * number
