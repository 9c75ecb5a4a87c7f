"""`wopr mcp`: the official client starts it, and reaches the host through it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from tests.support.client import Wire
from tests.support.host import ACME, WOPR, ServedHost, environment
from tests.support.mcp_clients import MODES, Person, all_tools, run_of

pytestmark = pytest.mark.anyio


def command(host: ServedHost) -> StdioServerParameters:
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    variables = {"WOPR_URL": host.url, "WOPR_API_KEY": ACME}
    return StdioServerParameters(command=str(WOPR), args=["mcp"], env=kept | variables)


@pytest.mark.parametrize("mode", MODES)
async def test_workflows_are_listed_called_and_approved_through_the_command(
    host: ServedHost, acme: Wire, mode: str
) -> None:
    person = Person("accept", {"action": "accept"})

    async with Client(command(host), mode=mode, elicitation_callback=person, cache=None) as client:
        tools = await all_tools(client)
        result = await client.call_tool("conformance-approval", {})

    assert "conformance-approval" in [tool.name for tool in tools]
    assert len(person.asked) == 1
    assert acme.snapshot(run_of(result))["status"] == "completed"


async def test_a_client_without_elicitation_gets_the_waiting_node_from_the_command(
    host: ServedHost,
) -> None:
    async with Client(command(host), cache=None) as client:
        result = await client.call_tool("conformance-approval", {})

    assert result.structured_content["status"] == "waiting-approval"


def test_a_missing_key_is_reported_before_serving(host: ServedHost, tmp_path: Path) -> None:
    variables = {"WOPR_URL": host.url, "WOPR_API_KEY": "wrong-key-of-nobody"}

    done = subprocess.run(
        [WOPR, "mcp"],
        env=environment(tmp_path, variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "answered 401" in " ".join(done.stderr.split())
    assert "wrong-key" not in done.stderr
