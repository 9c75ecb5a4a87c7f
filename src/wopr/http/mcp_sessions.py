"""The sessions of MCP clients: those of older versions keep one, those of today's need none."""

from __future__ import annotations

from typing import Final

import anyio
import anyio.abc
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from wopr.http.endpoint import Shared
from wopr.http.mcp_server import McpHost
from wopr.http.mcp_session_limit import SessionLimit
from wopr.protocol.errors import Unavailable
from wopr.security.keys import Principal

IDLE_SECONDS: Final = 30 * 60
MOST_SESSIONS: Final = 2000


async def run_sessions(shared: Shared, *, task_status: anyio.abc.TaskStatus[SessionLimit]) -> None:
    """Hold the sessions until the task ends; what serves them is told as soon as it can."""
    if shared.host is None:
        raise Unavailable("the host is starting")
    manager = StreamableHTTPSessionManager(
        McpHost(shared).server(),
        session_idle_timeout=IDLE_SECONDS,
        max_sessions=MOST_SESSIONS,
        max_request_body_size=shared.host.settings.max_body_bytes,
    )
    limit = SessionLimit(manager.handle_request, idle_seconds=IDLE_SECONDS, clock=shared.clock)
    async with manager.run():
        task_status.started(limit)
        await anyio.sleep_forever()


def owner(principal: Principal) -> AuthenticatedUser:
    """Whom a session belongs to: the key of a tenant, by its name."""
    return AuthenticatedUser(
        AccessToken(token="", client_id=principal.key_id, scopes=[], subject=principal.tenant)
    )
