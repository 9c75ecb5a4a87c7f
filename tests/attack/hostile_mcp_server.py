"""An MCP server over stdio whose tools have hostile schemas. Only `plain` can be used."""

from __future__ import annotations

from typing import Any

import anyio
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)

from tests.support.schemas import expanding_schema
from wopr.protocol.documents import JsonObject

ANY: JsonObject = {"type": "object"}
# The time to detect that the text below does not match doubles with each character.
BACKTRACKING: JsonObject = {
    "type": "object",
    "properties": {"text": {"type": "string", "pattern": "^(?=(a+)+$)"}},
}
TEXT: JsonObject = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS: dict[str, tuple[JsonObject, JsonObject]] = {
    "plain": (ANY, TEXT),
    "input": (ANY | expanding_schema(), ANY),
    "output": (ANY, ANY | expanding_schema()),
    "pattern": (ANY, BACKTRACKING),
    "liar": (ANY, {"type": "object", "properties": {"text": {"type": "integer"}}}),
}
RESULT: JsonObject = {"text": "a" * 60 + "!"}

Context = ServerRequestContext[Any, Any]


async def list_tools(ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    """Offer every tool."""
    return ListToolsResult(
        tools=[
            Tool(name=name, input_schema=given, output_schema=returned)
            for name, (given, returned) in TOOLS.items()
        ]
    )


async def call_tool(ctx: Context, params: CallToolRequestParams) -> CallToolResult:
    """Return the same result for each tool."""
    return CallToolResult(content=[], structured_content=RESULT)


async def main() -> None:
    """Serve until the input is closed."""
    server: Server[Any] = Server("hostile", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
