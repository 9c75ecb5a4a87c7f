"""`openwop.mcp.call`, also named `core.mcp.toolCall`: call an MCP tool without an agent."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wopr.agents.tools.tool import Tool, ToolFault
from wopr.engine.outcome import Completed, NodeFailure
from wopr.nodes.context import NodeContext, ToolUse
from wopr.nodes.registry import node
from wopr.protocol.documents import Closed, Json, JsonObject, NonEmpty
from wopr.protocol.json_schema.validation import UserSchema
from wopr.security.digest import canonical_digest

TYPE_ID = "openwop.mcp.call"
_VALUE = "the value"
_MESSAGES = {
    "tool_timeout": "returned no result in time",
    "tool_unavailable": "returned no result: its server did not respond",
    "tool_error": "returned an error",
}


class McpCallConfig(Closed, frozen=True, kw_only=True):
    """The tool, its server, and arguments. Inputs replace arguments of the same name."""

    server: NonEmpty
    tool: NonEmpty
    arguments: JsonObject = {}
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 60_000
    # Scopes that the key that started the run must have.
    required_scopes: list[NonEmpty] = []

    @property
    def name(self) -> str:
        """The name of the tool in allowlists and on the log."""
        return f"mcp:{self.server}.{self.tool}"


@node(TYPE_ID, aliases=("core.mcp.toolCall",))
async def mcp_call(ctx: NodeContext, config: McpCallConfig, inputs: JsonObject) -> Completed:
    """Call the tool and return its result as `result`.

    The call and its result are logged as a tool call of the host, without content. The call is made
    once per logical invocation. If it was made before a restart, the recorded result is used.
    """
    arguments = config.arguments | inputs
    tool = await _tool(ctx, config)
    await _check(ctx, tool, arguments)

    async def call() -> Json:
        try:
            return await ctx.llm.perform_tool(tool, arguments, config.timeout_ms)
        except ToolFault as fault:
            raise _failure(config.name, fault) from fault

    async def call_once() -> Json:
        return await ctx.once(f"tool:{config.name}", call)

    use = ToolUse(
        tool_name=config.name,
        arguments=arguments,
        transport="mcp",
        required_scopes=(*tool.required_scopes, *config.required_scopes),
    )
    return Completed({"result": await ctx.call_tool(use, call_once, _result_digest)})


async def _tool(ctx: NodeContext, config: McpCallConfig) -> Tool:
    try:
        await ctx.llm.prepare_tools([config.name])
    except ToolFault as fault:
        raise NodeFailure(str(fault), code="tool_unavailable") from fault
    tool = ctx.llm.find_tool(config.name)
    if tool is None:
        raise NodeFailure(
            f"there is no tool {config.name}", code="tool_unavailable", retryable=False
        )
    return tool


async def _check(ctx: NodeContext, tool: Tool, arguments: JsonObject) -> None:
    schema = UserSchema(tool.parameters, mask=_VALUE)
    for violation in await ctx.violations(schema, arguments):
        message = f"{violation.place('arguments')}: {violation.message}"
        raise NodeFailure(message, code=violation.code, retryable=False)


def _failure(name: str, fault: ToolFault) -> NodeFailure:
    """Return the failure of a call, without the tool's text.

    An error of the tool is not retried: the tool would fail again.
    """
    codes = {"tool_timeout": "tool_timeout", "mcp_unavailable": "tool_unavailable"}
    code = codes.get(fault.code, "tool_error")
    return NodeFailure(f"{name} {_MESSAGES[code]}", code=code, retryable=code != "tool_error")


def _result_digest(result: Json) -> JsonObject:
    """Return the digest and the length of a result, for the log."""
    length = len(msgspec.json.encode(result))
    return {"resultSha256": canonical_digest(result), "resultLength": length}
