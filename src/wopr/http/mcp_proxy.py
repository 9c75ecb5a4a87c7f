"""Passes what comes over standard input on to a host's `/mcp`, with one key, and back."""

from __future__ import annotations

from itertools import count
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx2
from mcp import Client, stdio_server
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server, ServerRequestContext
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

from wopr import __version__
from wopr.http.mcp import PATH
from wopr.http.mcp_rounds import in_rounds
from wopr.protocol.documents import JsonObject

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_CONNECT_SECONDS: Final = 10.0

Context = ServerRequestContext[Any, Any]


class NotReached(Exception):
    """The host did not let this in."""


async def proxy(url: str, key: str) -> None:
    """Serve standard input until it ends. Raises `NotReached`."""
    # A proxy of the environment is never the way to this same machine.
    async with httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {key}"},
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        trust_env=urlsplit(url).hostname not in _LOOPBACK,
    ) as http:
        await _let_in(http, f"{url}{PATH}")
        async with Client(
            streamable_http_client(f"{url}{PATH}", http_client=http),
            elicitation_callback=_never_asked,
            cache=None,
        ) as client:
            await _serve(client)


async def _let_in(http: httpx2.AsyncClient, place: str) -> None:
    """Try the key once, so that a wrong one is told as what it is."""
    try:
        response = await http.get(place)
    except httpx2.HTTPError as fault:
        raise NotReached(f"{place} cannot be reached: {fault}") from fault
    if response.status_code in (401, 403, 404, 501, 503):
        found: JsonObject = response.json()
        raise NotReached(f"{place} answered {response.status_code}: {found.get('message', '')}")


async def _serve(client: Client) -> None:
    async def list_tools(ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return await client.list_tools(cursor=None if params is None else params.cursor)

    async def call_tool(
        ctx: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        steps = count(1)

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            # Counted anew: every round counts from one, and a client wants it to go up.
            await ctx.session.report_progress(next(steps), message=message)

        async def ask(
            responses: InputResponses | None, state: str | None
        ) -> CallToolResult | InputRequiredResult:
            return await client.session.call_tool(
                params.name,
                params.arguments,
                progress_callback=tell,
                input_responses=responses,
                request_state=state,
                meta=_passed_on(params),
                allow_input_required=True,
            )

        return await in_rounds(ctx, params, ask)

    server: Server[Any] = Server(
        "wopr", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _passed_on(params: CallToolRequestParams) -> RequestParamsMeta | None:
    """What the client says beside its call, but for what concerns this connection alone."""
    given: JsonObject = dict(params.meta or {})
    kept = {
        name: value
        for name, value in given.items()
        if name == "traceparent" or name.startswith("io.openwop/")
    }
    return cast("RequestParamsMeta", kept) if kept else None


async def _never_asked(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Questions come as results here and are passed on; this only says that they may come."""
    return ElicitResult(action="cancel")
