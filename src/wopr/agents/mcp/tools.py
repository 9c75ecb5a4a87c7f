"""Tools of MCP servers, and their listings, which are stored on disk.

A replay must know the same tools, also if their server no longer exists. Descriptions of a server
are untrusted: models get them marked as such, and no decision depends on them.
"""

from __future__ import annotations

import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast
from urllib.parse import quote

import anyio
import anyio.to_thread
import msgspec
import structlog
from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    ContentBlock,
    RequestParamsMeta,
    TextContent,
)

from wopr.agents.mcp.servers import McpServer, ToolName, split_name
from wopr.agents.mcp.sessions import McpSessions, reason_of
from wopr.agents.tools.tool import SecretResolver, Tool, ToolContext, ToolFault, Transport
from wopr.protocol.documents import UNSET, Closed, Json, JsonObject, Unset, is_list, is_object
from wopr.protocol.errors import Unavailable
from wopr.protocol.json_schema.size import SchemaLimits, size_faults
from wopr.protocol.json_schema.validation import UserSchema, Violation, schema_faults
from wopr.security.untrusted import wrap_untrusted

MAX_TOOLS: Final = 500
LONGEST_DESCRIPTION: Final = 4000
_SUFFIX: Final = ".json"
MAX_PAGES: Final = 20
# The `_meta` member with the invocation id, which is the same for every attempt.
INVOCATION_META_KEY: Final = "io.openwop/invocationId"
# Checks a value for a tenant with a deadline. A large check runs in a subprocess.
Check: TypeAlias = Callable[
    [str, Callable[[], Sequence[Violation]]], Awaitable[Sequence[Violation]]
]

log = structlog.get_logger("wopr.mcp")


class ListedTool(Closed, frozen=True, kw_only=True):
    """A tool in a server's listing. `output` is the JSON Schema of its structured results."""

    name: ToolName
    description: str
    parameters: JsonObject
    output: JsonObject | Unset = UNSET


def listing_entry(
    name: str, description: str, schema: JsonObject, output: JsonObject | None = None
) -> ListedTool:
    """Return a listing entry. Raises `ValueError` if the name or a schema is not valid."""
    parameters = _mark_untrusted(schema, name)
    _check("inputSchema", parameters)
    found: JsonObject = {
        "name": name,
        "description": wrap_untrusted(description[:LONGEST_DESCRIPTION], tool=name),
        "parameters": parameters,
    }
    if output is not None:
        _check("outputSchema", output)
        found["output"] = output
    try:
        return msgspec.convert(found, ListedTool)
    except msgspec.ValidationError as fault:
        raise ValueError(str(fault)) from fault


def _check(path: str, schema: Json) -> None:
    if not is_object(schema):
        raise ValueError(f"{path}: not a JSON object")
    for fault in size_faults(schema, SchemaLimits()):
        raise ValueError(f"{path}: {fault}")
    for unusable in schema_faults(path, schema):
        raise ValueError(f"{path}: {unusable.message}")


def _mark_untrusted(schema: Json, tool: str) -> Json:
    """Return the schema with every description marked as untrusted, because models read them."""
    if is_list(schema):
        return [_mark_untrusted(each, tool) for each in schema]
    if not is_object(schema):
        return schema
    marked: JsonObject = {}
    for key, value in schema.items():
        if key in ("title", "$comment") and isinstance(value, str):
            continue
        is_text = key == "description" and isinstance(value, str)
        marked[key] = (
            wrap_untrusted(value[:LONGEST_DESCRIPTION], tool=tool)
            if is_text
            else _mark_untrusted(value, tool)
        )
    return marked


class ToolListings:
    """The listings of all servers by tenant. A server may list different tools per tenant."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tools: dict[Path, Mapping[str, ListedTool]] = {}
        # The identity of the file that was read last.
        self._versions: dict[Path, tuple[int, int]] = {}

    def get(self, tenant: str, server: str) -> Mapping[str, ListedTool] | None:
        """Return a server's last listing for a tenant; None if there is none.

        Another process may have replaced the file, so it is checked at each call.
        """
        path = self._path(tenant, server)
        try:
            status = path.stat()
            version = (status.st_ino, status.st_mtime_ns)
            if self._versions.get(path) != version:
                self._tools[path] = _read(path)
                self._versions[path] = version
        except (OSError, msgspec.MsgspecError):
            # A missing or damaged file counts as no listing.
            pass
        return self._tools.get(path)

    async def put(self, tenant: str, server: str, tools: Iterable[ListedTool]) -> None:
        """Store a server's listing for a tenant."""
        found = {tool.name: tool for tool in tools}
        if self.get(tenant, server) == found:
            return
        path = self._path(tenant, server)
        body = msgspec.json.encode(list(found.values()))
        await anyio.to_thread.run_sync(_write, path, body)
        self._tools[path] = found

    def _path(self, tenant: str, server: str) -> Path:
        return self._directory / f"{server}@{quote(tenant, safe='')}{_SUFFIX}"


def _read(path: Path) -> Mapping[str, ListedTool]:
    tools = msgspec.json.decode(path.read_bytes(), type=list[ListedTool])
    return {tool.name: tool for tool in tools}


def _write(path: Path, body: bytes) -> None:
    """Replace the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.write_bytes(body)
    draft.replace(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """One tool of one server."""

    server: McpServer
    tool: ListedTool
    sessions: McpSessions
    check: Check

    @property
    def name(self) -> str:
        """The name in allowlists and on the log."""
        return self.server.tool(self.tool.name)

    @property
    def description(self) -> str:
        """The server's description, marked as untrusted."""
        return self.tool.description

    @property
    def parameters(self) -> JsonObject:
        """The server's JSON Schema of the arguments."""
        return self.tool.parameters

    @property
    def transport(self) -> Transport:
        """The transport of the call."""
        return "mcp"

    @property
    def required_scopes(self) -> tuple[str, ...]:
        """The scopes that the key that started the run must have."""
        return tuple(self.server.scopes)

    async def call(self, arguments: JsonObject, context: ToolContext) -> Json:
        """Call the tool with the run's trace context and the invocation id."""
        meta: JsonObject = {INVOCATION_META_KEY: context.invocation_id}
        if context.traceparent:
            meta["traceparent"] = context.traceparent
        typed_meta = cast("RequestParamsMeta", meta)
        seconds = self.server.timeout_ms / 1000
        try:
            async with self.sessions.use(context.tenant, self.server, context.secret) as client:
                with anyio.fail_after(seconds):
                    result = await client.call_tool(self.tool.name, arguments, meta=typed_meta)
        except ToolFault:
            raise
        except TimeoutError as late:
            raise ToolFault(f"no result within {seconds:g} s", code="tool_timeout") from late
        except Exception as fault:
            raise _no_response(self.server, fault) from fault
        outcome = outcome_of(result)
        await self._check(result, context.tenant)
        return outcome

    async def _check(self, result: CallToolResult, tenant: str) -> None:
        """Raise `ToolFault` if a result does not fit the tool's output schema."""
        if isinstance(self.tool.output, Unset):
            return
        schema = UserSchema(self.tool.output, mask="a value")
        returned: Json = result.structured_content
        try:
            found = await self.check(tenant, lambda: schema.violations(returned))
        except Unavailable as busy:
            # The tool was called. Executing the node again would call it twice.
            raise ToolFault(f"the result could not be checked: {busy}") from busy
        for violation in found:
            place = violation.place() or "the result"
            raise ToolFault(f"the result does not fit its schema: {place}: {violation.message}")


class McpTools:
    """The tools of all declared servers, as a source of a toolbox."""

    def __init__(
        self,
        servers: Iterable[McpServer],
        sessions: McpSessions,
        listings: ToolListings,
        check: Check,
    ) -> None:
        self._servers = {server.name: server for server in servers}
        self._sessions = sessions
        self._listings = listings
        self._check = check
        # The client of the last listing. After a restart of the server, the tools are listed again.
        self._listed_by: dict[tuple[str, str], Client] = {}

    def find(self, tenant: str, name: str) -> Tool | None:
        """Return a tool of a listing, or None."""
        server, tool = self._find_server(tenant, name)
        if server is None:
            return None
        found = (self._listings.get(tenant, server.name) or {}).get(tool)
        if found is None:
            return None
        return McpTool(server=server, tool=found, sessions=self._sessions, check=self._check)

    def knows(self, tenant: str, name: str) -> bool:
        """Return whether the tool is listed, or the declaration excludes it."""
        server, _ = self._find_server(tenant, name)
        return server is None or self.find(tenant, name) is not None

    def names(self, tenant: str) -> Iterator[str]:
        """Yield the listed tools that a tenant can use."""
        for server in self._servers.values():
            if server.serves(tenant):
                known = self._listings.get(tenant, server.name) or {}
                yield from (server.tool(name) for name in known if server.has(name))

    async def prepare(self, tenant: str, names: Iterable[str], secret: SecretResolver) -> None:
        """List the tools of the servers of these tools, unless they are listed.

        A server that cannot be reached keeps its last listing. Raises `ToolFault` if it has none.
        """
        for server, tools in self._by_server(tenant, names):
            known = self._listings.get(tenant, server.name)
            if known is not None and tools <= known.keys() and self._is_listed(tenant, server):
                continue
            try:
                await self._list(tenant, server, secret)
            except ToolFault as fault:
                if known is None:
                    raise
                log.warning("mcp server not listed", server=server.name, reason=str(fault))

    def _by_server(
        self, tenant: str, names: Iterable[str]
    ) -> Iterable[tuple[McpServer, frozenset[str]]]:
        """Return the servers of these tools, each once with its tools."""
        tools: dict[str, frozenset[str]] = {}
        for name in names:
            server, tool = self._find_server(tenant, name)
            if server is not None:
                tools[server.name] = tools.get(server.name, frozenset()) | {tool}
        return [(self._servers[name], wanted) for name, wanted in tools.items()]

    def _is_listed(self, tenant: str, server: McpServer) -> bool:
        client = self._sessions.current(tenant, server)
        return client is not None and self._listed_by.get((tenant, server.name)) is client

    def _find_server(self, tenant: str, name: str) -> tuple[McpServer | None, str]:
        server_name, tool = split_name(name) or ("", "")
        server = self._servers.get(server_name)
        if server is None or not server.serves(tenant) or not server.has(tool):
            return None, tool
        return server, tool

    async def _list(self, tenant: str, server: McpServer, secret: SecretResolver) -> None:
        seconds = server.timeout_ms / 1000
        try:
            async with self._sessions.use(tenant, server, secret) as client:
                with anyio.fail_after(seconds):
                    found = [tool async for tool in _tools_of(client, server)]
            self._listed_by[tenant, server.name] = client
        except ToolFault:
            raise
        except Exception as fault:
            raise _no_response(server, fault) from fault
        await self._listings.put(tenant, server.name, found)


async def _tools_of(client: Client, server: McpServer) -> AsyncIterator[ListedTool]:
    """Yield the valid tools of a server, up to `MAX_TOOLS`."""
    cursor: str | None = None
    count = 0
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            try:
                usable = listing_entry(
                    tool.name, tool.description or tool.name, tool.input_schema, tool.output_schema
                )
            except ValueError as fault:
                reason = str(fault)[:LONGEST_DESCRIPTION]
                log.warning(
                    "mcp tool not valid", server=server.name, tool=tool.name[:128], reason=reason
                )
                continue
            if count < MAX_TOOLS:
                count += 1
                yield usable
        cursor = page.next_cursor
        if cursor is None:
            return


def outcome_of(result: CallToolResult) -> Json:
    """Return the structured content of a result, or else its text. Raises `ToolFault`."""
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
    """Return a content block; images and audio without their data."""
    plain: JsonObject = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    data = plain.pop("data", None)
    return plain | ({"length": len(data)} if isinstance(data, str) else {})


def _no_response(server: McpServer, fault: Exception) -> ToolFault:
    """Return the error of a call that the server did not answer."""
    code = (
        "tool_error"
        if isinstance(fault, MCPError) and fault.code != CONNECTION_CLOSED
        else "mcp_unavailable"
    )
    return ToolFault(f"The MCP server {server.name}: {reason_of(fault)}", code=code)
