"""Sessions with MCP servers over standard streams or HTTP.

A session is opened at its first use, kept, and opened again after a failure. It belongs to one
tenant, so that a server's session state never reaches another tenant.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, cast

import anyio
import anyio.abc
import structlog
from httpx2 import AsyncClient, Timeout
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, CallToolResult

from wopr.agents.mcp.servers import McpServer
from wopr.agents.tools.tool import SecretResolver, ToolFault
from wopr.protocol.documents import Unset

_LONGEST_LINE: Final = 2000
_CONNECT_SECONDS: Final = 10.0
# Time limit for opening a session, and the idle time after which a session is closed.
OPEN_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 600.0
# Errors of a single request. The session stays usable.
_REQUEST_ERRORS: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND})

Incoming = SessionMessage | Exception
Streams = tuple[ReadStream[Incoming], WriteStream[SessionMessage]]

log = structlog.get_logger("wopr.mcp")


@dataclass(frozen=True, slots=True)
class OpenTransport:
    """The streams to a server, and an event that is set when they end."""

    streams: AbstractAsyncContextManager[Streams]
    closed: anyio.Event


@asynccontextmanager
async def open_transport(
    server: McpServer, secret: SecretResolver
) -> AsyncGenerator[OpenTransport, None]:
    """Open the transport to a server with the credentials of a tenant."""
    closed = anyio.Event()
    if server.command:
        environment = dict(server.env)
        for variable, ref in server.secret_env.items():
            environment[variable] = await secret(ref, provider=f"mcp:{server.name}")
        async with _process_streams(server, environment) as streams:
            yield OpenTransport(_watch_streams(streams, closed), closed)
        return
    headers = dict(server.headers)
    if not isinstance(server.credentials_ref, Unset):
        value = await secret(server.credentials_ref, provider=server.host)
        headers[server.credential_header] = f"{server.credential_prefix}{value}"
    limits = Timeout(server.timeout_ms / 1000, connect=_CONNECT_SECONDS)
    # Only declared headers are used, and no proxies or credentials of the environment.
    async with AsyncClient(
        headers=headers, timeout=limits, trust_env=False, follow_redirects=False
    ) as http:
        streams = streamable_http_client(str(server.url), http_client=http)
        yield OpenTransport(_watch_streams(streams, closed), closed)


@asynccontextmanager
async def _process_streams(
    server: McpServer, environment: dict[str, str]
) -> AsyncGenerator[AbstractAsyncContextManager[Streams], None]:
    """Open the streams of the server's process. Its standard error goes to the host's log."""
    program, *arguments = server.command
    _require_program(server, program, environment)
    parameters = StdioServerParameters(
        command=program,
        args=arguments,
        env=environment,
        cwd=None if isinstance(server.cwd, Unset) else server.cwd,
        encoding_error_handler="replace",
    )
    readable, writable = os.pipe()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_log_stderr, readable, server.name)
            with os.fdopen(writable, "w") as stderr:
                yield stdio_client(parameters, errlog=stderr)
            tasks.cancel_scope.cancel()
    finally:
        os.close(readable)


def _require_program(server: McpServer, program: str, environment: dict[str, str]) -> None:
    """Raise `ToolFault` if the command of a server does not exist."""
    folder = "" if isinstance(server.cwd, Unset) else server.cwd
    wanted = os.path.join(folder, program) if os.sep in program else program
    if shutil.which(wanted, path=environment.get("PATH", os.environ.get("PATH"))) is None:
        raise ToolFault(
            f"The command {program!r} of the MCP server {server.name} was not found. Install it, "
            "or give its full path.",
            code="mcp_unavailable",
        )


async def _log_stderr(readable: int, server: str) -> None:
    """Log the standard error of a server, through the logger that redacts secrets."""
    os.set_blocking(readable, False)
    rest = b""
    while True:
        await anyio.wait_readable(readable)
        chunk = os.read(readable, 65_536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            log.info("mcp server stderr", server=server, line=_line_text(line))
        rest = rest[-_LONGEST_LINE:]


def _line_text(line: bytes) -> str:
    return line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip()


@asynccontextmanager
async def _watch_streams(
    streams: AbstractAsyncContextManager[Streams], closed: anyio.Event
) -> AsyncGenerator[Streams, None]:
    """Open the streams. Set the event when the server ends them."""
    async with streams as (incoming, outgoing):
        yield _WatchedStream(incoming, closed), outgoing


class _WatchedStream:
    """A stream that sets an event when it ends."""

    def __init__(self, stream: ReadStream[Incoming], closed: anyio.Event) -> None:
        self._stream = stream
        self._closed = closed

    @property
    def last_context(self) -> object:
        """The context of the sender of the last message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Incoming:
        """Return the next message."""
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._closed.set()
            raise

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _WatchedStream:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


@dataclass(slots=True, eq=False)
class McpSession:
    """An open session and its number of users."""

    client: Client
    ended: anyio.Event = field(default_factory=anyio.Event)
    users: int = 0
    is_retired: bool = False
    # Number of uses, to detect an idle session.
    uses: int = 0

    def retire(self) -> None:
        """Accept no further use. The session ends after its last use."""
        self.is_retired = True
        self._end_if_unused()

    def leave(self) -> None:
        """End one use."""
        self.users -= 1
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self.is_retired and not self.users:
            self.ended.set()


class McpSessions:
    """All sessions of a host. Each runs in its own task."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._sessions: dict[tuple[str, str], McpSession] = {}
        self._opening: dict[tuple[str, str], anyio.Lock] = {}

    @asynccontextmanager
    async def use(
        self, tenant: str, server: McpServer, secret: SecretResolver
    ) -> AsyncGenerator[Client, None]:
        """Use a tenant's session with a server. A session that fails or hangs is not used again."""
        session = await self._session(tenant, server, secret)
        session.users += 1
        session.uses += 1
        try:
            yield session.client
        except MCPError as error:
            if error.code not in _REQUEST_ERRORS:
                session.retire()
            raise
        except ToolFault:
            raise
        except BaseException:
            # This includes a time limit: the server may hang.
            session.retire()
            raise
        finally:
            session.leave()

    def current(self, tenant: str, server: McpServer) -> Client | None:
        """Return the client of a tenant's session, or None."""
        session = self._sessions.get((tenant, server.name))
        return None if session is None else session.client

    async def _session(self, tenant: str, server: McpServer, secret: SecretResolver) -> McpSession:
        key = (tenant, server.name)
        async with self._opening.setdefault(key, anyio.Lock()):
            session = self._sessions.get(key)
            if session is None or session.is_retired or session.ended.is_set():
                session = await self._open_session(tenant, server, secret)
                self._sessions[key] = session
            return session

    async def _open_session(
        self, tenant: str, server: McpServer, secret: SecretResolver
    ) -> McpSession:
        try:
            with anyio.fail_after(OPEN_SECONDS):
                session: McpSession = await self._tasks.start(self._run, tenant, server, secret)
                return session
        except ToolFault:
            raise
        except TimeoutError as late:
            raise _unreachable(server, f"not ready within {OPEN_SECONDS:g} s") from late
        except Exception as fault:  # transports raise many types
            raise _unreachable(server, reason_of(fault)) from fault

    async def _run(
        self,
        tenant: str,
        server: McpServer,
        secret: SecretResolver,
        *,
        task_status: anyio.abc.TaskStatus[McpSession],
    ) -> None:
        """Keep a session open until it ends. A later failure is logged and not raised."""
        session: McpSession | None = None
        try:
            async with (
                open_transport(server, secret) as transport,
                Client(transport.streams, cache=None) as client,
            ):
                # The library would check results in this process without a deadline. `McpTool`
                # checks them instead.
                vars(client.session)["validate_tool_result"] = _accept_result
                session = McpSession(client, ended=transport.closed)
                task_status.started(session)
                await _wait_for_end(session)
        except Exception as fault:
            if session is None:
                raise
            log.warning("mcp session failed", server=server.name, reason=reason_of(fault))
        finally:
            if session is not None:
                session.is_retired = True
                if self._sessions.get((tenant, server.name)) is session:
                    del self._sessions[tenant, server.name]


async def _accept_result(name: str, result: CallToolResult) -> None:
    """Accept every result."""


async def _wait_for_end(session: McpSession) -> None:
    """Wait until the session ends or is idle for too long."""
    while True:
        seen = session.uses
        with anyio.move_on_after(IDLE_SECONDS):
            await session.ended.wait()
            return
        if session.uses == seen and not session.users:
            session.retire()
            return


def reason_of(fault: BaseException) -> str:
    """Return the reason of a failure in one line. A group has the reason of its first failure."""
    if isinstance(fault, BaseExceptionGroup):
        several = cast("BaseExceptionGroup[BaseException]", fault)
        return reason_of(several.exceptions[0])
    return str(fault) or type(fault).__name__


def _unreachable(server: McpServer, reason: str) -> ToolFault:
    message = f"The MCP server {server.name} cannot be reached: {reason}"
    return ToolFault(message, code="mcp_unavailable")
