"""The two ways to an MCP server: the standard streams of a process, and HTTP."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import anyio
import structlog
from httpx2 import AsyncClient, Timeout
from mcp import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from wopr.agents.mcp_servers import McpServer
from wopr.nodes.tools import SecretOf, ToolFault
from wopr.protocol.documents import Unset

_LONGEST_LINE: Final = 2000
_CONNECT_SECONDS: Final = 10.0

Incoming = SessionMessage | Exception
Streams = tuple[ReadStream[Incoming], WriteStream[SessionMessage]]

log = structlog.get_logger("wopr.mcp")


@dataclass(frozen=True, slots=True)
class Transport:
    """The streams to a server, for a client to enter, and an event for when they have ended."""

    streams: AbstractAsyncContextManager[Streams]
    closed: anyio.Event


@asynccontextmanager
async def opened_transport(server: McpServer, secret: SecretOf) -> AsyncGenerator[Transport, None]:
    """Prepare the way to a server, with the credentials of whoever it is opened for."""
    closed = anyio.Event()
    if server.command:
        environment = dict(server.env)
        for variable, ref in server.secret_env.items():
            environment[variable] = await secret(ref, provider=f"mcp:{server.name}")
        async with _process_streams(server, environment) as streams:
            yield Transport(_watched(streams, closed), closed)
        return
    headers = dict(server.headers)
    if not isinstance(server.credentials_ref, Unset):
        value = await secret(server.credentials_ref, provider=server.host)
        headers[server.credential_header] = f"{server.credential_prefix}{value}"
    limits = Timeout(server.timeout_ms / 1000, connect=_CONNECT_SECONDS)
    # No proxy and no credentials of the environment: the operator names all that is used here.
    async with AsyncClient(
        headers=headers, timeout=limits, trust_env=False, follow_redirects=False
    ) as http:
        streams = streamable_http_client(str(server.url), http_client=http)
        yield Transport(_watched(streams, closed), closed)


@asynccontextmanager
async def _process_streams(
    server: McpServer, environment: dict[str, str]
) -> AsyncGenerator[AbstractAsyncContextManager[Streams], None]:
    """The streams of the server's process; what it writes elsewhere goes to the host's log."""
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
            tasks.start_soon(_retell, readable, server.name)
            with os.fdopen(writable, "w") as complaints:
                yield stdio_client(parameters, errlog=complaints)
            tasks.cancel_scope.cancel()
    finally:
        os.close(readable)


def _require_program(server: McpServer, program: str, environment: dict[str, str]) -> None:
    """Raise `ToolFault` when the command of a server does not exist."""
    folder = "" if isinstance(server.cwd, Unset) else server.cwd
    wanted = os.path.join(folder, program) if os.sep in program else program
    if shutil.which(wanted, path=environment.get("PATH", os.environ.get("PATH"))) is None:
        raise ToolFault(
            f"the command {program!r} of the MCP server {server.name} was not found: install it, "
            "or give its full path",
            code="mcp_unavailable",
        )


async def _retell(readable: int, server: str) -> None:
    """Log what a server complains of, by the way that keeps secrets out of the log."""
    os.set_blocking(readable, False)
    rest = b""
    while True:
        await anyio.wait_readable(readable)
        chunk = os.read(readable, 65_536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            log.info("mcp server says", server=server, line=_shown(line))
        rest = rest[-_LONGEST_LINE:]


def _shown(line: bytes) -> str:
    return line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip()


@asynccontextmanager
async def _watched(
    streams: AbstractAsyncContextManager[Streams], closed: anyio.Event
) -> AsyncGenerator[Streams, None]:
    """The same streams, with an event for when the server has ended them."""
    async with streams as (incoming, outgoing):
        yield _Watched(incoming, closed), outgoing


class _Watched:
    """A stream that tells when it has ended."""

    def __init__(self, stream: ReadStream[Incoming], closed: anyio.Event) -> None:
        self._stream = stream
        self._closed = closed

    @property
    def last_context(self) -> object:
        """What the sender of the last message ran in."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Incoming:
        """The next message."""
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._closed.set()
            raise

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Watched:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()
