"""The console as an ASGI application, for every path that the API does not have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.routing import Route, Router

from wopr.console.desk import Desk
from wopr.console.endpoint import PageEndpoint
from wopr.console.live import LiveParts
from wopr.console.page import Page
from wopr.console.pages import PAGES
from wopr.console.render import redacted
from wopr.console.static_files import STATIC
from wopr.console.visit import Visit
from wopr.http.answers import Answer, Stream
from wopr.http.asgi import ASGIApp, Receive, Scope, Send
from wopr.http.endpoint import UNKNOWN_ROUTE, Shared, not_found
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation
from wopr.protocol.errors import NotFound

# What begins with these is the API's, also where it has nothing.
API_PREFIXES: Final = ("/v1", "/.well-known", "/healthz", "/readyz", "/metrics")


def console(shared: Shared) -> ASGIApp:
    """The application that serves all pages."""
    scopes = {page.path: page.scope for page in PAGES}
    offers = {page.path: page.offered for page in PAGES if page.offered is not None}
    desk = Desk(shared, scopes, offers, LiveParts())
    # First, because they are asked for most.
    endpoints = {STATIC.path: PageEndpoint(desk, {"GET": STATIC, "HEAD": STATIC})}
    endpoints |= {
        page.path: PageEndpoint(desk, _operations(desk, page), has_large_form=page.has_large_form)
        for page in PAGES
    }
    missing = PageEndpoint(desk, {"GET": _missing(), "POST": _missing()})

    async def otherwise(scope: Scope, receive: Receive, send: Send) -> None:
        if _is_for_people(scope):
            await missing(scope, receive, send)
        else:
            await not_found(shared, scope, receive, send)

    routes = [
        Route(path.replace("{node_id}", "{node_id:path}"), endpoint)
        for path, endpoint in endpoints.items()
    ]
    return Router(routes=routes, redirect_slashes=False, default=otherwise)


def _is_for_people(scope: Scope) -> bool:
    """Whether a request for a path that nobody has comes from a browser, and not to the API."""
    accepted = dict(scope["headers"]).get(b"accept", b"")
    return b"text/html" in accepted and not scope["path"].startswith(API_PREFIXES)


def _operations(desk: Desk, page: Page) -> dict[str, Operation]:
    def handler(
        answer: Callable[[Visit], Awaitable[Answer | Stream]],
    ) -> Callable[[Exchange], Awaitable[Answer | Stream]]:
        async def serve(exchange: Exchange) -> Answer | Stream:
            visit = Visit(desk, exchange)
            found = await answer(visit)
            if isinstance(found, Stream):
                return found
            return await redacted(found, exchange.redactor, visit.shown_once)

        return serve

    read = Operation(
        name=f"console.{page.name}",
        method="GET",
        path=page.path,
        handler=handler(page.get),
        summary=page.name,
        tag="console",
        scope=page.scope,
        offered=page.offered,
        read=page.read,
    )
    if page.post is None:
        return {"GET": read}
    write = Operation(
        name=f"console.{page.name}",
        method="POST",
        path=page.path,
        handler=handler(page.post),
        summary=page.name,
        tag="console",
        scope=page.scope if page.post_scope is None else page.post_scope,
        offered=page.offered,
        action=page.action,
        # An answer that is kept for a repeated request could be the page with a new key.
        takes_key=False,
    )
    return {"GET": read, "POST": write}


def _missing() -> Operation:
    async def nothing(exchange: Exchange) -> Answer:
        raise NotFound("there is no such page")

    return Operation(
        name="console.unknown",
        method="GET",
        path=UNKNOWN_ROUTE,
        handler=nothing,
        summary="unknown",
        tag="console",
        scope="",
    )
