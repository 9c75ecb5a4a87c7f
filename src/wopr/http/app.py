"""The ASGI application: all operations on one router."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
from starlette.routing import Route, Router

from wopr.host.host import Host
from wopr.http.endpoint import AppState, Endpoint, not_found
from wopr.http.mcp import PATH as MCP_PATH
from wopr.http.mcp.endpoint import McpEndpoint
from wopr.http.openapi import openapi_document
from wopr.http.operation import Operation
from wopr.http.request import ASGIApp, Receive, Request, Scope, Send
from wopr.http.response import Response
from wopr.http.routes import (
    agents,
    audit,
    conformance,
    discovery,
    events,
    feedback,
    forks,
    interrupts,
    kahn,
    processes,
    runs,
    usage,
    webhooks,
    workflows,
)
from wopr.protocol.documents import encode

OpenHost = Callable[[], AbstractAsyncContextManager[Host]]
Pages = Callable[[AppState], ASGIApp]

OPERATIONS: tuple[Operation, ...] = (
    *runs.OPERATIONS,
    *events.OPERATIONS,
    *interrupts.OPERATIONS,
    *forks.OPERATIONS,
    *webhooks.OPERATIONS,
    *audit.OPERATIONS,
    *feedback.OPERATIONS,
    *kahn.OPERATIONS,
    *workflows.OPERATIONS,
    *agents.OPERATIONS,
    *processes.OPERATIONS,
    *usage.OPERATIONS,
    *conformance.OPERATIONS,
    *discovery.OPERATIONS,
)


class App:
    """The ASGI application of one host. It opens the host at start and closes it at the end.

    `operations` replaces the operations of the API; the path `/mcp` is then not served.
    """

    def __init__(
        self,
        open_host: OpenHost,
        pages: Pages | None = None,
        operations: Sequence[Operation] | None = None,
    ) -> None:
        self.state = AppState(time.perf_counter)
        self._open_host = open_host
        endpoints = _endpoints(
            self.state, operations or (*OPERATIONS, _openapi_operation(OPERATIONS))
        )
        self._mcp = McpEndpoint(self.state)
        # A path without parameters is looked up directly. Only other paths need the router.
        self._exact_paths: dict[str, ASGIApp] = {
            path: endpoint for path, endpoint in endpoints.items() if "{" not in path
        }
        self._parameter_prefixes = tuple(
            {f"/{path.split('/')[1]}/" for path in endpoints if "{" in path}
        )
        if operations is None:
            self._exact_paths[MCP_PATH] = self._mcp
        # Paths outside the API may be console pages.
        self._fallback = partial(not_found, self.state) if pages is None else pages(self.state)
        self._router = Router(
            # A node id may contain slashes.
            routes=[
                Route(path.replace("{node_id}", "{node_id:path}"), endpoint)
                for path, endpoint in endpoints.items()
            ],
            redirect_slashes=False,
            default=self._fallback,
            lifespan=lambda _: self.run_host(),
        )

    @property
    def host(self) -> Host:
        """The open host."""
        if self.state.host is None:
            raise RuntimeError("The host is not open. Open it with `App.run_host()`.")
        return self.state.host

    def single_operation_app(self, operation: Operation) -> ASGIApp:
        """Return an application that serves one operation of this host without a key."""
        endpoint = Endpoint(self.state, {operation.method: replace(operation, scope=None)})

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == operation.path:
                await endpoint(scope, receive, send)
            else:
                await not_found(self.state, scope, receive, send)

        return serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        serve: ASGIApp | None = None
        if scope["type"] == "http":
            path = scope["path"]
            serve = self._exact_paths.get(path)
            if serve is None and not path.startswith(self._parameter_prefixes):
                serve = self._fallback
        await (serve or self._router)(scope, receive, send)

    @asynccontextmanager
    async def run_host(self) -> AsyncGenerator[None, None]:
        """Open the host, and close it at the end of the block."""
        async with (
            self._open_host() as host,
            self._mcp.accept_requests(),
            anyio.create_task_group() as tasks,
        ):
            self.state.open(host)
            tasks.start_soon(self.state.watch_streams)
            yield
            self.state.stopping.set()
            tasks.cancel_scope.cancel()


def _endpoints(state: AppState, operations: Iterable[Operation]) -> dict[str, Endpoint]:
    """Create one endpoint per path.

    A path with an action (`/{id}:pause`) comes before the path that would match it too (`/{id}`).
    """
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    ordered = sorted(by_path, key=lambda path: ":" not in path.rpartition("/")[2])
    return {path: Endpoint(state, by_path[path]) for path in ordered}


def _openapi_operation(operations: tuple[Operation, ...]) -> Operation:
    cache: list[bytes] = []

    async def get_openapi(request: Request) -> Response:
        """Return the OpenAPI description, generated from the operation table."""
        if not cache:
            cache.append(encode(openapi_document((*operations, this))))
        return Response(200, cache[0], headers={"cache-control": "public, max-age=300"})

    this = Operation(
        name="getOpenapi",
        method="GET",
        path="/v1/openapi.json",
        handler=get_openapi,
        summary="Read this description",
        tag="discovery",
    )
    return this
