"""The ASGI application: all operations on one router."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
from starlette.routing import Route, Router

from wopr.http import (
    agents,
    audit,
    bundle,
    conformance,
    discovery,
    events,
    export,
    feedback,
    fleet,
    forks,
    ingest,
    interrupts,
    judges,
    mcp,
    otlp,
    processes,
    queues,
    runs,
    transitions,
    usage,
    webhooks,
    workflows,
)
from wopr.http.answers import Answer
from wopr.http.asgi import ASGIApp, Receive, Scope, Send
from wopr.http.endpoint import Endpoint, Shared, not_found
from wopr.http.exchange import Exchange
from wopr.http.openapi import openapi_document
from wopr.http.operation import Operation
from wopr.protocol.documents import encode
from wopr.runtime.host import Host

OpenHost = Callable[[], AbstractAsyncContextManager[Host]]
Pages = Callable[[Shared], ASGIApp]

OPERATIONS: tuple[Operation, ...] = (
    *runs.OPERATIONS,
    *events.OPERATIONS,
    *interrupts.OPERATIONS,
    *forks.OPERATIONS,
    *bundle.OPERATIONS,
    *webhooks.OPERATIONS,
    *audit.OPERATIONS,
    *feedback.OPERATIONS,
    *queues.OPERATIONS,
    *judges.OPERATIONS,
    *export.OPERATIONS,
    *transitions.OPERATIONS,
    *ingest.OPERATIONS,
    *otlp.OPERATIONS,
    *fleet.OPERATIONS,
    *workflows.OPERATIONS,
    *agents.OPERATIONS,
    *processes.OPERATIONS,
    *usage.OPERATIONS,
    *conformance.OPERATIONS,
    *discovery.OPERATIONS,
)


class App:
    """Serves one host, which it opens at start and closes at the end; all of it, or some operations."""

    def __init__(
        self,
        open_host: OpenHost,
        pages: Pages | None = None,
        operations: Sequence[Operation] | None = None,
    ) -> None:
        self.shared = Shared(time.perf_counter)
        self._open_host = open_host
        endpoints = _endpoints(self.shared, operations or (*OPERATIONS, _openapi(OPERATIONS)))
        self._mcp = mcp.McpEndpoint(self.shared)
        # A path without parameters is found by its name; only the others need the router's search.
        self._plain: dict[str, ASGIApp] = {
            path: found for path, found in endpoints.items() if "{" not in path
        }
        self._searched = tuple({f"/{path.split('/')[1]}/" for path in endpoints if "{" in path})
        if operations is None:
            self._plain[mcp.PATH] = self._mcp
        # Other paths than those of the API may be console pages.
        self._others = partial(not_found, self.shared) if pages is None else pages(self.shared)
        self._router = Router(
            # A node's id is any text, one with a slash too.
            routes=[
                Route(path.replace("{node_id}", "{node_id:path}"), endpoint)
                for path, endpoint in endpoints.items()
            ],
            redirect_slashes=False,
            default=self._others,
            lifespan=lambda _: self.opened(),
        )

    @property
    def host(self) -> Host:
        """The host, once it is open."""
        if self.shared.host is None:
            raise RuntimeError("the host is not open yet")
        return self.shared.host

    def only(self, operation: Operation) -> ASGIApp:
        """An application that serves one operation of the same host, and needs no key for it."""
        found = Endpoint(self.shared, {operation.method: replace(operation, scope=None)})

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == operation.path:
                await found(scope, receive, send)
            else:
                await not_found(self.shared, scope, receive, send)

        return serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        serve: ASGIApp | None = None
        if scope["type"] == "http":
            path = scope["path"]
            serve = self._plain.get(path)
            if serve is None and not path.startswith(self._searched):
                serve = self._others
        await (serve or self._router)(scope, receive, send)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None, None]:
        """Open the host, and close it at the end of the block."""
        async with (
            self._open_host() as host,
            self._mcp.opened(),
            anyio.create_task_group() as tasks,
        ):
            self.shared.open(host)
            tasks.start_soon(self.shared.watch_streams)
            yield
            self.shared.stopping.set()
            tasks.cancel_scope.cancel()


def _endpoints(shared: Shared, operations: Iterable[Operation]) -> dict[str, Endpoint]:
    """One endpoint per path; an action (`/{id}:pause`) before the path it would be mistaken for."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    ordered = sorted(by_path, key=lambda path: ":" not in path.rpartition("/")[2])
    return {path: Endpoint(shared, by_path[path]) for path in ordered}


def _openapi(operations: tuple[Operation, ...]) -> Operation:
    kept: list[bytes] = []

    async def get_openapi(exchange: Exchange) -> Answer:
        """Describe every route, generated from the table that serves them."""
        if not kept:
            kept.append(encode(openapi_document((*operations, this))))
        return Answer(200, kept[0], headers={"cache-control": "public, max-age=300"})

    this = Operation(
        name="getOpenapi",
        method="GET",
        path="/v1/openapi.json",
        handler=get_openapi,
        summary="Read this description",
        tag="discovery",
    )
    return this
