"""The official client, as a test wants it."""

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
)

from tests.wire.host import ACME
from wopr.protocol.documents import JsonObject

# Today's version, which needs no session, and the one before it, which keeps one.
MODES = ("auto", "legacy")


class Person:
    """Whoever sits before the client: what they were asked, and what they say to it."""

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


class Asleep(Person):
    """Somebody who is asked and never says anything."""

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
    """Connect to a host's `/mcp`; without a person nobody can be asked."""
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


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


def run_of(result: CallToolResult) -> str:
    meta: JsonObject = result.meta or {}
    return str(meta["io.openwop/runId"])


def beside(meta: JsonObject) -> RequestParamsMeta:
    """What goes with a call beside its arguments."""
    return cast("RequestParamsMeta", meta)
