"""The ASGI application: all operations on one router."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.routing import BaseRoute, Route, Router

from wopr.http import discovery, events, runs, workflows
from wopr.http.answers import Answer
from wopr.http.asgi import Receive, Scope, Send
from wopr.http.endpoint import Endpoint, Shared, not_found
from wopr.http.exchange import Exchange
from wopr.http.openapi import openapi_document
from wopr.http.operation import Operation
from wopr.protocol.documents import encode
from wopr.runtime.host import Host

OpenHost = Callable[[], AbstractAsyncContextManager[Host]]

OPERATIONS: tuple[Operation, ...] = (
    *runs.OPERATIONS,
    *events.OPERATIONS,
    *workflows.OPERATIONS,
    *discovery.OPERATIONS,
)


class App:
    """Serves one host, which it opens at start and closes at the end."""

    def __init__(self, open_host: OpenHost) -> None:
        self.shared = Shared(time.perf_counter)
        self._open_host = open_host
        operations = (*OPERATIONS, _openapi(OPERATIONS))
        self._router = Router(
            routes=_routes(self.shared, operations),
            redirect_slashes=False,
            default=not_found,
            lifespan=self._lifespan,
        )

    @property
    def host(self) -> Host:
        """The host, once it is open."""
        if self.shared.host is None:
            raise RuntimeError("the host is not open yet")
        return self.shared.host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        await self._router(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        async with self._open_host() as host:
            self.shared.open(host)
            yield
            self.shared.stopping.set()


def _routes(shared: Shared, operations: Iterable[Operation]) -> list[BaseRoute]:
    """One route per path; an action (`/{id}:pause`) before the path it would be mistaken for."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    ordered = sorted(by_path, key=lambda path: ":" not in path.rpartition("/")[2])
    return [Route(path, Endpoint(shared, by_path[path])) for path in ordered]


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
