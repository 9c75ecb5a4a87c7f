"""Forwards MCP messages between standard input and the `/mcp` path of a host."""

from __future__ import annotations

from itertools import count
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx2
from mcp import Client, stdio_server
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
    ListToolsResult,
    PaginatedRequestParams,
    RequestParamsMeta,
)

from wopr.http.mcp import PATH
from wopr.http.mcp.elicitation import Context, call_in_rounds
from wopr.protocol.documents import JsonObject
from wopr.version import __version__

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_CONNECT_SECONDS: Final = 10.0


class ConnectionFailed(Exception):
    """The host cannot be reached or refused the connection."""


async def proxy(url: str, key: str) -> None:
    """Serve standard input until it ends. Raises `ConnectionFailed`."""
    # HTTP proxies of the environment are ignored for a host on this machine.
    async with httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {key}"},
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        trust_env=urlsplit(url).hostname not in _LOOPBACK,
    ) as http:
        await _check_key(http, f"{url}{PATH}")
        async with Client(
            streamable_http_client(f"{url}{PATH}", http_client=http),
            elicitation_callback=_cancel_elicitation,
            cache=None,
        ) as client:
            await _serve(client)


async def _check_key(http: httpx2.AsyncClient, endpoint: str) -> None:
    """Try the key once, so that a wrong key gives a clear error."""
    try:
        response = await http.get(endpoint)
    except httpx2.HTTPError as fault:
        raise ConnectionFailed(f"{endpoint} cannot be reached: {fault}") from fault
    if response.status_code in (401, 403, 404, 501, 503):
        found: JsonObject = response.json()
        raise ConnectionFailed(
            f"{endpoint} answered {response.status_code}: {found.get('message', '')}"
        )


async def _serve(client: Client) -> None:
    async def list_tools(ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return await client.list_tools(cursor=None if params is None else params.cursor)

    async def call_tool(
        ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        steps = count(1)

        async def report(progress: float, total: float | None, message: str | None) -> None:
            # Progress must increase for a client, but every round counts from one.
            await ctx.session.report_progress(next(steps), message=message)

        async def call_once(
            responses: InputResponses | None, state: str | None
        ) -> CallToolResult | InputRequiredResult:
            return await client.session.call_tool(
                params.name,
                params.arguments,
                progress_callback=report,
                input_responses=responses,
                request_state=state,
                meta=_forwarded_meta(params),
                allow_input_required=True,
            )

        return await call_in_rounds(ctx, params, call_once)

    server: Server[Any] = Server(
        "wopr", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _forwarded_meta(params: CallToolRequestParams) -> RequestParamsMeta | None:
    """Return the members of `_meta` that are forwarded to the host."""
    given: JsonObject = dict(params.meta or {})
    kept = {
        name: value
        for name, value in given.items()
        if name == "traceparent" or name.startswith("io.openwop/")
    }
    return cast("RequestParamsMeta", kept) if kept else None


async def _cancel_elicitation(
    context: ClientRequestContext, params: ElicitRequestParams
) -> ElicitResult:
    """Cancel a question. Passing this callback declares that elicitation is supported.

    The host returns questions as results, which are passed on to the client.
    """
    return ElicitResult(action="cancel")
