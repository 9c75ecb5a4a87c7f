"""Tools of MCP servers, called like every other tool: allowed, limited and on the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

import anyio
import structlog
from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    ContentBlock,
    RequestParamsMeta,
    TextContent,
)

from wopr.agents.mcp_listings import LONGEST_DESCRIPTION, MOST_TOOLS, Listed, Listings, listed
from wopr.agents.mcp_servers import McpServer, split_name
from wopr.agents.mcp_sessions import McpSessions, reason_of
from wopr.nodes.tools import SecretOf, Tool, ToolContext, ToolFault, Transport
from wopr.protocol.checking import UserSchema, Violation
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.errors import Unavailable

MOST_PAGES: Final = 20
# The member of a call's `_meta` that is the same for every attempt at it.
INVOCATION: Final = "io.openwop/invocationId"

log = structlog.get_logger("wopr.mcp")


class Check(Protocol):
    """Applies schemas on behalf of a tenant, with a deadline."""

    async def __call__(
        self, tenant: str, work: Callable[[], Sequence[Violation]], /
    ) -> Sequence[Violation]:
        """Return what the work returns; a subprocess does what it offloads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """One tool of one server."""

    server: McpServer
    tool: Listed
    sessions: McpSessions
    check: Check

    @property
    def name(self) -> str:
        """What allowlists and the log call it."""
        return self.server.tool(self.tool.name)

    @property
    def description(self) -> str:
        """What the server says of it, marked as untrusted."""
        return self.tool.description

    @property
    def parameters(self) -> JsonObject:
        """What the server says of the arguments."""
        return self.tool.parameters

    @property
    def transport(self) -> Transport:
        """How the call leaves the host."""
        return "mcp"

    @property
    def required_scopes(self) -> tuple[str, ...]:
        """What the key that started the run must be allowed."""
        return tuple(self.server.scopes)

    async def call(self, arguments: JsonObject, context: ToolContext) -> Json:
        """Call the tool; the server is told whose trace and which logical call this is."""
        meta: JsonObject = {INVOCATION: context.invocation_id}
        if context.traceparent:
            meta["traceparent"] = context.traceparent
        told = cast("RequestParamsMeta", meta)
        seconds = self.server.timeout_ms / 1000
        try:
            async with self.sessions.use(context.tenant, self.server, context.secret) as client:
                with anyio.fail_after(seconds):
                    result = await client.call_tool(self.tool.name, arguments, meta=told)
        except ToolFault:
            raise
        except TimeoutError as late:
            raise ToolFault(f"no result within {seconds:g} s", code="tool_timeout") from late
        except Exception as fault:
            raise _lost(self.server, fault) from fault
        outcome = outcome_of(result)
        await self._check(result, context.tenant)
        return outcome

    async def _check(self, result: CallToolResult, tenant: str) -> None:
        """Refuse a result that does not fit the tool's own schema of results."""
        if isinstance(self.tool.output, Unset):
            return
        schema = UserSchema(self.tool.output, mask="a value")
        returned: Json = result.structured_content
        try:
            found = await self.check(tenant, lambda: schema.violations(returned))
        except Unavailable as busy:
            # The tool has done its work. Executing the node again would call the tool twice.
            raise ToolFault(f"the result could not be checked: {busy}") from busy
        for violation in found:
            place = violation.place() or "the whole"
            raise ToolFault(f"the result does not fit its schema: {place}: {violation.message}")


class McpTools:
    """The tools of all declared servers, as a source of a toolbox."""

    def __init__(
        self,
        servers: Iterable[McpServer],
        sessions: McpSessions,
        listings: Listings,
        check: Check,
    ) -> None:
        self._servers = {server.name: server for server in servers}
        self._sessions = sessions
        self._listings = listings
        self._check = check
        # The client that a server was last asked by: a server that was started anew is asked anew.
        self._asked: dict[tuple[str, str], Client] = {}

    def find(self, tenant: str, name: str) -> Tool | None:
        """A tool that its server is known to have; a server that was never asked has none."""
        server, tool = self._named(tenant, name)
        if server is None:
            return None
        found = (self._listings.get(tenant, server.name) or {}).get(tool)
        if found is None:
            return None
        return McpTool(server=server, tool=found, sessions=self._sessions, check=self._check)

    def knows(self, tenant: str, name: str) -> bool:
        """Whether it is known what the tool is, or that the operator lets nobody have it."""
        server, _ = self._named(tenant, name)
        return server is None or self.find(tenant, name) is not None

    def names(self, tenant: str) -> Iterator[str]:
        """What a tenant's agents could be allowed to call, as far as it is known."""
        for server in self._servers.values():
            if server.serves(tenant):
                known = self._listings.get(tenant, server.name) or {}
                yield from (server.tool(name) for name in known if server.has(name))

    async def prepare(self, tenant: str, names: Iterable[str], secret: SecretOf) -> None:
        """Ask the servers of these tools what they have, unless that is known.

        A server that cannot be asked still has what it had; one of which nothing is known raises
        `ToolFault`.
        """
        for server, tools in self._by_server(tenant, names):
            known = self._listings.get(tenant, server.name)
            if known is not None and tools <= known.keys() and self._is_asked(tenant, server):
                continue
            try:
                await self._ask(tenant, server, secret)
            except ToolFault as fault:
                if known is None:
                    raise
                log.warning("mcp server not asked", server=server.name, reason=str(fault))

    def _by_server(
        self, tenant: str, names: Iterable[str]
    ) -> Iterable[tuple[McpServer, frozenset[str]]]:
        """The servers of these tools, each once: one that hangs is waited for once."""
        tools: dict[str, frozenset[str]] = {}
        for name in names:
            server, tool = self._named(tenant, name)
            if server is not None:
                tools[server.name] = tools.get(server.name, frozenset()) | {tool}
        return [(self._servers[name], wanted) for name, wanted in tools.items()]

    def _is_asked(self, tenant: str, server: McpServer) -> bool:
        client = self._sessions.current(tenant, server)
        return client is not None and self._asked.get((tenant, server.name)) is client

    def _named(self, tenant: str, name: str) -> tuple[McpServer | None, str]:
        server_name, tool = split_name(name) or ("", "")
        server = self._servers.get(server_name)
        if server is None or not server.serves(tenant) or not server.has(tool):
            return None, tool
        return server, tool

    async def _ask(self, tenant: str, server: McpServer, secret: SecretOf) -> None:
        seconds = server.timeout_ms / 1000
        try:
            async with self._sessions.use(tenant, server, secret) as client:
                with anyio.fail_after(seconds):
                    found = [tool async for tool in _tools_of(client, server)]
            self._asked[tenant, server.name] = client
        except ToolFault:
            raise
        except Exception as fault:
            raise _lost(server, fault) from fault
        await self._listings.put(tenant, server.name, found)


async def _tools_of(client: Client, server: McpServer) -> AsyncIterator[Listed]:
    """The usable tools of a server, as many as a host will keep."""
    cursor: str | None = None
    count = 0
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            try:
                usable = listed(
                    tool.name, tool.description or tool.name, tool.input_schema, tool.output_schema
                )
            except ValueError as fault:
                reason = str(fault)[:LONGEST_DESCRIPTION]
                log.warning(
                    "mcp tool not usable", server=server.name, tool=tool.name[:128], reason=reason
                )
                continue
            if count < MOST_TOOLS:
                count += 1
                yield usable
        cursor = page.next_cursor
        if cursor is None:
            return


def outcome_of(result: CallToolResult) -> Json:
    """What a call came to: its structured content, or else its text. Raises `ToolFault` for an error."""
    if result.is_error:
        raise ToolFault(_text(result.content) or "the tool failed", code="tool_error")
    if result.structured_content is not None:
        return result.structured_content
    if all(isinstance(block, TextContent) for block in result.content):
        return _text(result.content)
    return [_block(block) for block in result.content]


def _text(content: Sequence[ContentBlock]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


def _block(block: ContentBlock) -> JsonObject:
    """A piece of content; of pictures and sounds only what they are."""
    plain: JsonObject = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    data = plain.pop("data", None)
    return plain | ({"length": len(data)} if isinstance(data, str) else {})


def _lost(server: McpServer, fault: Exception) -> ToolFault:
    """A call that the server did not answer as it should."""
    code = (
        "tool_error"
        if isinstance(fault, MCPError) and fault.code != CONNECTION_CLOSED
        else "mcp_unavailable"
    )
    return ToolFault(f"the MCP server {server.name}: {reason_of(fault)}", code=code)
