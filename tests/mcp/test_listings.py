"""Stored tool listings, in a host beside other processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from tests.api.hosted import hosted
from tests.mcp.conftest import Notes
from tests.mcp.desk import desk
from wopr import mcp_server
from wopr.agents.mcp.sessions import McpSessions
from wopr.agents.mcp.tools import ListedTool, McpTools, ToolListings, listing_entry
from wopr.agents.tools.tool import ToolFault
from wopr.process.subprocess_pool import PoolLimits, SubprocessPool
from wopr.testing import call, say, scripted

pytestmark = pytest.mark.anyio


def a_tool(name: str, description: str = "Search.") -> ListedTool:
    return listing_entry(name, description, {"type": "object"})


async def no_secret(ref: str, *, host: str = "", provider: str = "") -> str:
    raise ToolFault(f"there is no credential {ref}")


async def test_a_replay_without_known_tools_does_not_report_a_changed_prompt(
    notes: Notes, tmp_path: Path
) -> None:
    flow, folder = desk(notes.server()), tmp_path / "data"
    models = scripted(call("notes_search", text="rain"), say("Nothing."))
    async with hosted(folder, [flow], models) as host:
        run = await host.start(flow)
        await run.settled()
    # Like a process with its own directory.
    shutil.rmtree(folder / "mcp")

    async with hosted(folder, [flow], models) as host:
        replay = await host.run(run.id).replay()
        snapshot = await replay.settled()
        types = [event.type for event in await replay.log()]

    assert snapshot.status == "completed"
    assert "agent.toolReturned" in types
    assert "replay.diverged" not in types
    assert notes.called == ["search"]


async def test_listings_read_by_another_process_are_shared(tmp_path: Path) -> None:
    one, other = ToolListings(tmp_path), ToolListings(tmp_path)
    assert other.get("acme", "notes") is None

    await one.put("acme", "notes", [a_tool("search")])
    first = other.get("acme", "notes")
    await one.put("acme", "notes", [a_tool("search", "Look."), a_tool("read")])
    second = other.get("acme", "notes")

    assert first == {"search": a_tool("search")}
    assert second == {"search": a_tool("search", "Look."), "read": a_tool("read")}
    assert other.get("globex", "notes") is None


async def test_an_unreadable_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "notes@acme.json").write_text("[{")

    assert ToolListings(tmp_path).get("acme", "notes") is None


async def test_an_unreachable_server_is_tried_once_for_all_its_tools(
    tmp_path: Path,
) -> None:
    tried = tmp_path / "tried"
    command = ["/bin/sh", "-c", f"echo $NAME >> {tried}"]
    servers = [mcp_server(name, command=command, env={"NAME": name}) for name in ("notes", "mail")]
    listings = ToolListings(tmp_path)
    for server in servers:
        await listings.put("acme", server.name, [a_tool("search")])
    wanted = [f"mcp:{name}.{tool}" for tool in ("search", "read") for name in ("notes", "mail")]

    async with anyio.create_task_group() as tasks:
        tools = McpTools(servers, McpSessions(tasks), listings, SubprocessPool(PoolLimits()).run)
        await tools.prepare("acme", wanted, no_secret)

    assert tried.read_text().split() == ["notes", "mail"]
    assert tools.find("acme", "mcp:notes.search") is not None
