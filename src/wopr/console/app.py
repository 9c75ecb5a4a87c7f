"""The console as an ASGI application, for every path that the API does not have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.routing import Route, Router

from wopr.console import settings, sign_in
from wopr.console.definitions import agents, start, workflows
from wopr.console.endpoint import PageEndpoint
from wopr.console.fleet import agent as fleet_agent
from wopr.console.fleet import overview as fleet_overview
from wopr.console.fleet import run as fleet_run
from wopr.console.inbox import interrupt
from wopr.console.inbox import list as inbox_list
from wopr.console.page import ConsoleState, Page, PageRequest
from wopr.console.render import redact_console_response
from wopr.console.reviews import page as reviews
from wopr.console.reviews import queues
from wopr.console.runs import actions, compare, export, feedback
from wopr.console.runs import list as run_list
from wopr.console.runs import page as run_page
from wopr.console.runs.live import live_page
from wopr.console.static_files import STATIC
from wopr.http.endpoint import UNKNOWN_ROUTE, AppState, not_found
from wopr.http.operation import Operation
from wopr.http.request import ASGIApp, Receive, Request, Scope, Send
from wopr.http.response import Response, StreamResponse
from wopr.protocol.errors import NotFound

# Paths with these prefixes belong to the API, also when the API has no route for them.
API_PREFIXES: Final = ("/v1", "/.well-known", "/healthz", "/readyz", "/metrics")


def pages() -> tuple[Page, ...]:
    """Return every page of the console. If two paths match, the first page serves the request."""
    return (
        *sign_in.PAGES,
        *run_list.PAGES,
        *export.PAGES,
        *run_page.PAGES,
        *actions.PAGES,
        *feedback.PAGES,
        live_page(),
        *inbox_list.PAGES,
        *interrupt.PAGES,
        *reviews.PAGES,
        *queues.PAGES,
        *compare.PAGES,
        *workflows.PAGES,
        *fleet_overview.PAGES,
        *fleet_agent.PAGES,
        *fleet_run.PAGES,
        *start.PAGES,
        *agents.PAGES,
        *settings.PAGES,
    )


def console(state: AppState) -> ASGIApp:
    """Return the application that serves all pages."""
    all_pages = pages()
    scopes = {page.path: page.scope for page in all_pages}
    checks = {page.path: page.check_enabled for page in all_pages if page.check_enabled is not None}
    console_state = ConsoleState(state, scopes, checks)
    # First, because most requests are for static files.
    endpoints = {STATIC.path: PageEndpoint(console_state, {"GET": STATIC, "HEAD": STATIC})}
    endpoints |= {
        page.path: PageEndpoint(
            console_state, _operations(console_state, page), has_large_form=page.has_large_form
        )
        for page in all_pages
    }
    missing = PageEndpoint(console_state, {"GET": _missing_page(), "POST": _missing_page()})

    async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
        if _wants_page(scope):
            await missing(scope, receive, send)
        else:
            await not_found(state, scope, receive, send)

    routes = [
        Route(path.replace("{node_id}", "{node_id:path}"), endpoint)
        for path, endpoint in endpoints.items()
    ]
    return Router(routes=routes, redirect_slashes=False, default=unknown_path)


def _wants_page(scope: Scope) -> bool:
    """Return whether a request for an unknown path comes from a browser and is not for the API."""
    accepted = dict(scope["headers"]).get(b"accept", b"")
    return b"text/html" in accepted and not scope["path"].startswith(API_PREFIXES)


def _operations(console_state: ConsoleState, page: Page) -> dict[str, Operation]:
    def handler(
        handle: Callable[[PageRequest], Awaitable[Response | StreamResponse]],
    ) -> Callable[[Request], Awaitable[Response | StreamResponse]]:
        async def serve(request: Request) -> Response | StreamResponse:
            page_request = PageRequest(console_state, request)
            response = await handle(page_request)
            if isinstance(response, StreamResponse):
                return response
            return await redact_console_response(
                response, request.redactor, page_request.shown_once
            )

        return serve

    read = Operation(
        name=f"console.{page.name}",
        method="GET",
        path=page.path,
        handler=handler(page.get),
        summary=page.name,
        tag="console",
        scope=page.scope,
        check_enabled=page.check_enabled,
        read_level=page.read_level,
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
        check_enabled=page.check_enabled,
        action=page.action,
        # A stored response could be the page that shows a new key.
        accepts_idempotency_key=False,
    )
    return {"GET": read, "POST": write}


def _missing_page() -> Operation:
    async def raise_not_found(request: Request) -> Response:
        raise NotFound("This page does not exist.")

    return Operation(
        name="console.unknown",
        method="GET",
        path=UNKNOWN_ROUTE,
        handler=raise_not_found,
        summary="unknown",
        tag="console",
        scope="",
    )
