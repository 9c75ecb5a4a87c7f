"""Results of tools whose check cannot start."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from mcp_types import CallToolResult

from tests.mcp.test_listings import no_secret
from wopr import mcp_server
from wopr.agents.mcp.sessions import McpSessions
from wopr.agents.mcp.tools import McpTool, listing_entry
from wopr.agents.tools.tool import ToolContext, ToolFault
from wopr.protocol.errors import Unavailable
from wopr.protocol.json_schema.validation import Violation

pytestmark = pytest.mark.anyio


class Sessions:
    """A server that answers every call, and counts them."""

    def __init__(self) -> None:
        self.calls = 0

    @asynccontextmanager
    async def use(self, *_: object) -> AsyncGenerator[Sessions, None]:
        yield self

    async def call_tool(self, name: str, arguments: Any, **_: object) -> CallToolResult:
        self.calls += 1
        return CallToolResult(content=[], structured_content={"size": 1})


async def busy(tenant: str, work: Callable[[], Sequence[Violation]], /) -> Sequence[Violation]:
    raise Unavailable("100 checks of this tenant are waiting")


async def test_a_tool_whose_result_cannot_be_checked_now_is_not_called_twice() -> None:
    sessions = Sessions()
    tool = McpTool(
        server=mcp_server("notes", command=["notes"]),
        tool=listing_entry("search", "Search.", {"type": "object"}, {"type": "object"}),
        sessions=cast("McpSessions", sessions),
        check=busy,
    )
    async with httpx.AsyncClient() as http:
        context = ToolContext(
            tenant="acme",
            run_id="run-1",
            node_id="ask",
            agent_id="",
            call_id="call-1",
            invocation_id="inv-1",
            http=http,
            secret=no_secret,
        )

        with pytest.raises(ToolFault, match="could not be checked: 100 checks of this tenant"):
            await tool.call({}, context)

    assert sessions.calls == 1
