"""The official MCP client for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal, cast

import anyio
import httpx2
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    RequestParamsMeta,
    Tool,
)

from tests.support.host import ACME
from wopr.protocol.documents import JsonObject

# The current version, which needs no session, and the previous one, which has one.
MODES = ("auto", "legacy")


class Person:
    """The person at the client: the questions received, and the answers to them."""

    def __init__(
        self,
        action: Literal["accept", "decline", "cancel"],
        content: dict[str, str | int | float | bool | list[str] | None] | None = None,
    ) -> None:
        self.asked: list[ElicitRequestFormParams] = []
        self._said = ElicitResult(action=action, content=content)

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.asked.append(params)
        return self._said


class SilentPerson(Person):
    """A person who never answers."""

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        await super().__call__(context, params)
        await anyio.sleep_forever()
        raise AssertionError("unreachable")


@asynccontextmanager
async def connected(
    url: str, key: str = ACME, *, mode: str = "auto", person: Person | None = None
) -> AsyncGenerator[Client, None]:
    """Connect to a host's `/mcp`; without a person, elicitation is not supported."""
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http,
        Client(
            streamable_http_client(f"{url}/mcp", http_client=http),
            mode=mode,
            elicitation_callback=person,
            cache=None,
        ) as client,
    ):
        yield client


async def all_tools(client: Client) -> list[Tool]:
    """List the tools of every page. Tests that share a host add workflows to it."""
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


def run_of(result: CallToolResult) -> str:
    meta: JsonObject = result.meta or {}
    return str(meta["io.openwop/runId"])


def beside(meta: JsonObject) -> RequestParamsMeta:
    """Return the metadata beside a call's arguments."""
    return cast("RequestParamsMeta", meta)
