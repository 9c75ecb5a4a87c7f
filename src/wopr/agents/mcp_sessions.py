"""Sessions with MCP servers: opened when first needed, kept, and opened anew after a failure.

A session belongs to one tenant: whatever a server remembers of it, no other tenant meets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, cast

import anyio
import anyio.abc
import structlog
from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, CallToolResult

from wopr.agents.mcp_servers import McpServer
from wopr.agents.mcp_transports import opened_transport
from wopr.nodes.tools import SecretOf, ToolFault

# How long a server may take until it can be talked to, and how long an unused session is kept.
OPEN_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 600.0
# Errors of a single request, which say nothing against the session.
_OF_THE_REQUEST: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND})

log = structlog.get_logger("wopr.mcp")


@dataclass(slots=True, eq=False)
class Session:
    """An open session and who uses it."""

    client: Client
    over: anyio.Event = field(default_factory=anyio.Event)
    users: int = 0
    is_retired: bool = False
    # Counts the uses, so that a look at the clock can tell whether there was one.
    uses: int = 0

    def retire(self) -> None:
        """Take no further use; it ends when the last one has."""
        self.is_retired = True
        self._end_if_unused()

    def leave(self) -> None:
        """End one use."""
        self.users -= 1
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self.is_retired and not self.users:
            self.over.set()


class McpSessions:
    """All sessions of a host, each in a task of its own."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._sessions: dict[tuple[str, str], Session] = {}
        self._opening: dict[tuple[str, str], anyio.Lock] = {}

    @asynccontextmanager
    async def use(
        self, tenant: str, server: McpServer, secret: SecretOf
    ) -> AsyncGenerator[Client, None]:
        """Use a tenant's session with a server; one that fails or hangs is not used again."""
        session = await self._session(tenant, server, secret)
        session.users += 1
        session.uses += 1
        try:
            yield session.client
        except MCPError as error:
            if error.code not in _OF_THE_REQUEST:
                session.retire()
            raise
        except ToolFault:
            raise
        except BaseException:
            # Also a call that was cut short by its time limit: the server may hang for good.
            session.retire()
            raise
        finally:
            session.leave()

    def current(self, tenant: str, server: McpServer) -> Client | None:
        """The client of a tenant's session, while there is one."""
        session = self._sessions.get((tenant, server.name))
        return None if session is None else session.client

    async def _session(self, tenant: str, server: McpServer, secret: SecretOf) -> Session:
        key = (tenant, server.name)
        async with self._opening.setdefault(key, anyio.Lock()):
            session = self._sessions.get(key)
            if session is None or session.is_retired or session.over.is_set():
                session = await self._opened(tenant, server, secret)
                self._sessions[key] = session
            return session

    async def _opened(self, tenant: str, server: McpServer, secret: SecretOf) -> Session:
        try:
            with anyio.fail_after(OPEN_SECONDS):
                session: Session = await self._tasks.start(self._run, tenant, server, secret)
                return session
        except ToolFault:
            raise
        except TimeoutError as late:
            raise _unreachable(server, f"not ready within {OPEN_SECONDS:g} s") from late
        except Exception as fault:  # whatever a transport fails with
            raise _unreachable(server, reason_of(fault)) from fault

    async def _run(
        self,
        tenant: str,
        server: McpServer,
        secret: SecretOf,
        *,
        task_status: anyio.abc.TaskStatus[Session],
    ) -> None:
        """Keep a session open until it is over. What it fails with later is nobody else's failure."""
        session: Session | None = None
        try:
            async with (
                opened_transport(server, secret) as transport,
                Client(transport.streams, cache=None) as client,
            ):
                # The library would apply the server's schemas within this process, without a
                # deadline. `McpTool` applies them.
                vars(client.session)["validate_tool_result"] = _unchecked
                session = Session(client, over=transport.closed)
                task_status.started(session)
                await _until_over(session)
        except Exception as fault:
            if session is None:
                raise
            log.warning("mcp session failed", server=server.name, reason=reason_of(fault))
        finally:
            if session is not None:
                session.is_retired = True
                if self._sessions.get((tenant, server.name)) is session:
                    del self._sessions[tenant, server.name]


async def _unchecked(name: str, result: CallToolResult) -> None:
    """Accept every result."""


async def _until_over(session: Session) -> None:
    """Wait until the session has ended, or nobody has used it for long."""
    while True:
        seen = session.uses
        with anyio.move_on_after(IDLE_SECONDS):
            await session.over.wait()
            return
        if session.uses == seen and not session.users:
            session.retire()
            return


def reason_of(fault: BaseException) -> str:
    """What went wrong, in one line; of several failures the first."""
    if isinstance(fault, BaseExceptionGroup):
        several = cast("BaseExceptionGroup[BaseException]", fault)
        return reason_of(several.exceptions[0])
    return str(fault) or type(fault).__name__


def _unreachable(server: McpServer, reason: str) -> ToolFault:
    message = f"the MCP server {server.name} cannot be reached: {reason}"
    return ToolFault(message, code="mcp_unavailable")
