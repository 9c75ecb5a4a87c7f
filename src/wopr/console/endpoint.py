"""Endpoints of pages: they authenticate by session cookie and return errors as pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote, urlsplit

from wopr.console.forms import SMALL_FORM_BYTES
from wopr.console.page import SESSION_COOKIE, ConsoleState, PageRequest, local_path
from wopr.console.render import redact_console_response
from wopr.console.static_files import SAFE_HEADERS
from wopr.http.endpoint import Endpoint
from wopr.http.limits import OpenStreams
from wopr.http.operation import Operation
from wopr.http.request import Request
from wopr.http.response import Response, error_envelope, error_response
from wopr.protocol.errors import NotFound, Unauthenticated, WoprError
from wopr.security.api_keys import Principal

_TITLES: Final = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "No longer available",
    413: "Too large",
    422: "Not possible",
    429: "Too many requests",
    501: "Not available on this host",
    503: "The host is busy",
}
_HINTS: Final = {
    400: "Go back, correct the value named above, and send the form again.",
    403: "Sign in with a key that has the scope, or ask a person with the scope keys:manage.",
    404: (
        "The item may have been removed, or it belongs to another tenant. "
        "See the lists in the menu."
    ),
    409: "Reload the page. Another person may have done this already.",
    429: "Wait a moment and reload the page.",
    503: "Wait a moment and reload the page.",
}


def error_page(request: PageRequest, error: WoprError) -> Response:
    """Return the page for an error; without a session, redirect to the sign-in page."""
    if isinstance(error, Unauthenticated):
        return _sign_in(request, error)
    status = error.status
    # The page must not show whether an item of another tenant exists.
    message = "" if isinstance(error, NotFound) else error.message
    response = request.render(
        "error.html",
        status,
        code=status,
        title=_TITLES.get(status, "Something went wrong"),
        message=message and error_envelope(error, request.http.redactor).message,
        hint=_HINTS.get(status, ""),
        scope=error.details.get("scopeRequired", ""),
        correlation_id=error.details.get("correlationId", ""),
    )
    headers = error_response(error).headers
    return replace(response, headers=response.headers | headers)


def _sign_in(request: PageRequest, error: WoprError) -> Response:
    accepted = request.http.header(b"accept") or "*/*"
    if "text/html" not in accepted and "*/*" not in accepted:
        response = error_response(error, request.http.redactor)
        return replace(response, headers=dict(SAFE_HEADERS))
    if _is_cross_site(request):
        # A link on another site sends no cookie. The page reloads itself and then sends the cookie.
        return request.render("reload.html")
    ended = "&ended=1" if request.cookies.get(SESSION_COOKIE) else ""
    back = quote(local_path(_return_path(request)), safe="/")
    return request.redirect(f"/sign-in?next={back}{ended}", request.session_cookie(""))


def _is_cross_site(request: PageRequest) -> bool:
    site = request.http.header(b"sec-fetch-site")
    has_no_session = SESSION_COOKIE not in request.cookies
    return site == "cross-site" and has_no_session and request.http.scope["method"] == "GET"


def _return_path(request: PageRequest) -> str:
    """Return the path to open after signing in: this one, or for a form the page that sent it."""
    if request.http.scope["method"] == "GET":
        return request.path_and_query
    try:
        return urlsplit(request.http.header(b"referer") or "").path or "/"
    except ValueError:
        return "/"


class PageEndpoint(Endpoint):
    """One path of the console with all its methods."""

    def __init__(
        self,
        state: ConsoleState,
        operations: Mapping[str, Operation],
        *,
        has_large_form: bool = False,
    ) -> None:
        super().__init__(state.app, operations)
        self._console_state = state
        self._has_large_form = has_large_form

    async def authenticate(self, request: Request) -> Principal:
        """Find the signed-in key; a form must come from a page of the same session."""
        page_request = PageRequest(self._console_state, request)
        principal = await self._console_state.sessions(request.host).principal(page_request.session)
        if request.scope["method"] != "GET":
            # From here on the body counts against the tenant's limits.
            request.principal = principal
            if not self._has_large_form:
                request.max_body_bytes = min(request.max_body_bytes, SMALL_FORM_BYTES)
            await page_request.check_form()
        return principal

    async def find_caller(self, request: Request) -> Principal:
        """Authenticate a request; without a valid session it counts as a request without a key.

        It does not count as a failed authentication: a visitor without a session is redirected to
        the sign-in page, which counts wrong keys.
        """
        try:
            return await self.authenticate(request)
        except WoprError:
            self._state.failed_auth.count_request_without_key(request.client_address)
            raise

    @property
    def streams(self) -> OpenStreams:
        """The counter of open live pages."""
        return self._state.console_streams

    def credential(self, request: Request) -> str:
        """The session id: a live page ends when its session or key ends."""
        return PageRequest(self._console_state, request).session.session_id

    async def refuse(self, request: Request, error: WoprError) -> Response:
        """Return the error as a page."""
        return await redact_console_response(
            error_page(PageRequest(self._console_state, request), error), request.redactor
        )

    async def record_denial(self, request: Request, operation: Operation, error: WoprError) -> None:
        """Write an audit entry of a refusal, except for visitors who have not signed in."""
        if not isinstance(error, Unauthenticated):
            await super().record_denial(request, operation, error)
