"""Pages, the requests for them, and the console's shared state.

To add a page, write a `Page` into the `PAGES` of its module. `app.pages` collects them.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, TypeAlias
from urllib.parse import quote, unquote_plus, urlencode

import anyio.to_thread

from wopr.console.forms import Form, read_form
from wopr.console.render import macro, render
from wopr.console.runs.log import DecodedLogs
from wopr.console.session import LIFETIME_MS, ConsoleSession, ConsoleSessions
from wopr.console.static_files import SAFE_HEADERS
from wopr.host.host import Host
from wopr.http.endpoint import AppState
from wopr.http.operation import CheckEnabled, ReadLevel
from wopr.http.request import Request
from wopr.http.response import Response, StreamResponse
from wopr.protocol.documents import encode
from wopr.protocol.errors import Forbidden, NotProvided, Unauthenticated
from wopr.security.api_keys import Principal
from wopr.security.shapes import holds_shape


class ConsoleState:
    """The state of the console in this process. It is lost when the process ends."""

    def __init__(
        self,
        app: AppState,
        scopes: Mapping[str, str | None],
        checks: Mapping[str, CheckEnabled],
    ) -> None:
        self.app = app
        # The required scope of each page, by its path.
        self.scopes = scopes
        # Functions that refuse a page which the operator has switched off, by its path.
        self.checks = checks
        self.logs = DecodedLogs()
        self._sessions: ConsoleSessions | None = None

    def sessions(self, host: Host) -> ConsoleSessions:
        """Return the sessions of the host, which must be open."""
        if self._sessions is None:
            self._sessions = ConsoleSessions(
                host.session_key, host.keyring, host.store, host.sources.now
            )
        return self._sessions


@dataclass(frozen=True, slots=True)
class NavItem:
    """An entry of the top bar. It is shown if the signed-in key may see its page.

    `key` is the keyboard shortcut, after `g`.
    """

    title: str
    path: str
    key: str


NAV: Final = (
    NavItem("Runs", "/runs", "r"),
    NavItem("Inbox", "/inbox", "i"),
    NavItem("Reviews", "/reviews", "v"),
    NavItem("Fleet", "/fleet", "f"),
    NavItem("Workflows", "/workflows", "w"),
    NavItem("Agents", "/agents", "a"),
    NavItem("Settings", "/settings", "s"),
)


SESSION_COOKIE: Final = "wopr_session"
VISITOR_COOKIE: Final = "wopr_visitor"
THEME_COOKIE: Final = "wopr_theme"
_COOKIES: Final = frozenset({SESSION_COOKIE, VISITOR_COOKIE, THEME_COOKIE})
THEMES: Final = ("system", "light", "dark")
TOKEN_FIELD: Final = "csrf"
HTML: Final = "text/html; charset=utf-8"
# The longest path, in characters, that a page or a redirect repeats.
LONGEST_PATH: Final = 2_000
# The longest value of a cookie, in characters. A session has about 250.
LONGEST_COOKIE: Final = 1_000
_YEAR_SECONDS: Final = 365 * 86_400
_VISITOR: Final = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True)
class Fragments:
    """Renders parts of a page. It is immutable, so a worker thread may use it."""

    state: Mapping[str, object]

    def render(self, template: str, **values: object) -> str:
        """Render a template of a part."""
        return render(template, **self.state, **values).decode()

    def macro(self, template: str, name: str) -> Callable[..., str]:
        """Return a macro of a template, for parts that are rendered many times."""
        return macro(template, name, self.state)


class PageRequest:
    """A request for a page: session, form, rights, and the rendering of the response."""

    def __init__(self, state: ConsoleState, http: Request) -> None:
        self.state = state
        self.http = http
        # A search form sends empty fields. They are not filters.
        http.query = {name: value for name, value in http.query.items() if value}
        self.query = http.query
        # A new key. Its page shows it, although it is a credential.
        self.shown_once = ""

    @property
    def host(self) -> Host:
        """The host that is served."""
        return self.http.host

    @property
    def caller(self) -> Principal:
        """The signed-in key."""
        return self.http.caller

    @property
    def tenant(self) -> str:
        """The tenant of the signed-in key."""
        return self.http.tenant

    def may(self, scope: str) -> bool:
        """Return whether the signed-in key has a scope."""
        principal = self.http.principal
        return principal is not None and principal.may(scope)

    def require(self, scope: str) -> None:
        """Raise `Forbidden` if the signed-in key lacks a scope."""
        if not self.may(scope):
            raise Forbidden(f"this key lacks the scope {scope}", scopeRequired=scope)

    def can_open(self, path: str) -> bool:
        """Return whether the console has this page and the key may see it."""
        if self.http.principal is None or path not in self.state.scopes:
            return False
        scope = self.state.scopes[path]
        return (not scope or self.may(scope)) and self._is_enabled(path)

    def _is_enabled(self, path: str) -> bool:
        check = self.state.checks.get(path)
        if check is None:
            return True
        try:
            check(self.host.settings)
        except NotProvided:
            return False
        return True

    @cached_property
    def now(self) -> int:
        """The time of this request."""
        return self.host.sources.now()

    @property
    def path_and_query(self) -> str:
        """The path and query of this request."""
        query = urlencode(self.query)
        path = quote(str(self.http.scope["path"]))
        return f"{path}?{query}" if query else path

    # Sessions and forms

    @cached_property
    def cookies(self) -> dict[str, str]:
        """The cookies of the console. The last of a repeated cookie counts; long ones are ignored.

        Their values hold no quotes or escapes, so the header is only split. `http.cookies` can take
        seconds for one header.
        """
        sent = (self.http.header(b"cookie") or "").split(";")
        pairs = (each.strip().partition("=") for each in sent)
        return {
            name: value
            for name, _, value in pairs
            if name in _COOKIES and len(value) <= LONGEST_COOKIE
        }

    @cached_property
    def session(self) -> ConsoleSession:
        """The session of the cookie. Raises `Unauthenticated` if there is none."""
        cookie = self.cookies.get(SESSION_COOKIE)
        if not cookie:
            raise Unauthenticated("Sign in first.")
        return self.state.sessions(self.host).read(cookie)

    @cached_property
    def visitor(self) -> str:
        """The id of a browser without a session, from its cookie; else a new id."""
        known = self.cookies.get(VISITOR_COOKIE, "")
        # The response repeats the value, so it must have the form of an id.
        return known if _VISITOR.fullmatch(known) else secrets.token_urlsafe(16)

    @property
    def form_token(self) -> str:
        """The CSRF token for the forms of this visitor."""
        return self.state.sessions(self.host).form_token(self._subject)

    @property
    def _subject(self) -> str:
        is_signed_in = self.http.principal is not None
        return self.session.session_id if is_signed_in else f"visitor:{self.visitor}"

    async def form(self, most: int | None = None) -> Form:
        """Read the form, of at most `most` bytes."""
        return await read_form(self.http, most)

    async def check_form(self, subject: str | None = None) -> None:
        """Refuse a form or a script's request without the CSRF token of its session."""
        given = self.http.header(b"x-csrf-token") or (await self.form()).get(TOKEN_FIELD)
        subject = self.session.session_id if subject is None else subject
        if not self.state.sessions(self.host).is_form_token(subject, given):
            raise Forbidden(
                "This form does not belong to your session. Reload the page and try again."
            )

    # Responses

    async def page(self, template: str, status: int = 200, /, **values: object) -> Response:
        """Render a page in the frame, with the number of open interrupts."""
        return self.render(template, status, await self._pending_count(), **values)

    async def large_page(self, template: str, /, **values: object) -> Response:
        """Render a page in a thread, because it may take long."""
        render = partial(self.render, template, 200, await self._pending_count(), **values)
        return await anyio.to_thread.run_sync(render)

    async def _pending_count(self) -> int | None:
        """Return the number of open interrupts; None if the key may not see the inbox."""
        return (
            await self.host.store.count_pending_interrupts(self.tenant)
            if self.can_open("/inbox")
            else None
        )

    def heavy_read_slot(self) -> AbstractAsyncContextManager[None]:
        """Limit the concurrent reads of whole runs by the tenant during the block."""
        return self.host.heavy_reads.slot(self.tenant)

    def render(
        self, template: str, status: int = 200, waiting: int | None = None, /, **values: object
    ) -> Response:
        """Render a page in the frame; without the frame for a request of a script."""
        is_part = self.http.header(b"x-part") is not None
        body = render(
            template,
            layout="part.html" if is_part else "frame.html",
            waiting=waiting,
            **self._values(),
            **values,
        )
        return Response(status, body, HTML, dict(SAFE_HEADERS))

    def fragments(self, **values: object) -> Fragments:
        """Return a renderer for parts of a page that share these values."""
        return Fragments(self._values() | values)

    def _values(self) -> dict[str, object]:
        """Return the values that every template may use."""
        principal = self.http.principal
        return {
            "me": principal,
            "nav": self._nav(),
            "csrf": "" if principal is None else self.form_token,
            "theme": self.theme,
            "path_and_query": local_path(self.path_and_query),
            "path": self.http.scope["path"],
            "now": self.now,
            "may": self.may,
            "can_open": self.can_open,
            "done": self.query.get("done", ""),
        }

    def redirect(self, path: str, cookie: str = "") -> Response:
        """Send the browser to another page of the console."""
        headers = SAFE_HEADERS | {"location": path}
        return Response(303, headers=headers | ({"set-cookie": cookie} if cookie else {}))

    @property
    def theme(self) -> str:
        """The theme that the user selected."""
        chosen = self.cookies.get(THEME_COOKIE, "")
        return chosen if chosen in THEMES else THEMES[0]

    def _nav(self) -> list[NavItem]:
        return [item for item in NAV if self.can_open(item.path)]

    # Cookies to set

    def session_cookie(self, value: str) -> str:
        """Return the header that sets the session; with an empty value, the one that deletes it."""
        return self._cookie(SESSION_COOKIE, value, LIFETIME_MS // 1000 if value else 0)

    def visitor_cookie(self) -> str:
        """Return the header that sets the visitor's id."""
        return self._cookie(VISITOR_COOKIE, self.visitor, LIFETIME_MS // 1000)

    def theme_cookie(self, theme: str) -> str:
        """Return the header that sets the theme."""
        return self._cookie(THEME_COOKIE, theme, _YEAR_SECONDS)

    def _cookie(self, name: str, value: str, seconds: int) -> str:
        secure = "; Secure" if self._is_over_tls else ""
        return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    @property
    def _is_over_tls(self) -> bool:
        is_public_https = self.host.settings.public_url.startswith("https:")
        return is_public_https or self.http.scope.get("scheme") == "https"


def local_path(target: str) -> str:
    """Return the target of a redirect if it is a safe path of this console, else the start page.

    A path is not safe if it may lead to another site, contains a credential or is very long: pages
    and `Location` headers repeat it.
    """
    if len(target) > LONGEST_PATH:
        return "/"
    is_ours = target.startswith("/") and not target.startswith("//")
    is_plain = target.isprintable() and target.isascii() and "\\" not in target
    is_repeatable = is_ours and is_plain and not holds_shape(unquote_plus(target))
    return target if is_repeatable else "/"


PageHandler: TypeAlias = Callable[[PageRequest], Awaitable[Response | StreamResponse]]
# The scope of a page that every signed-in user may see.
SIGNED_IN: Final = ""


def redirect_to(path: str) -> PageHandler:
    """Return a handler that redirects to another page, for a path that has only a form."""

    async def redirect(request: PageRequest) -> Response:
        return request.redirect(path)

    return redirect


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One path of the console.

    `scope` is required to read the page, and to send its form unless `post_scope` is set; with None
    no session is required. `check_enabled` refuses a page that the operator has switched off.
    `post` handles the form, after its CSRF token was checked. `action` is the name of this request
    in the audit log. `read_level` says whether requests to read the page are in the audit log.
    With `has_large_form` the form may be as large as any request: for values of a workflow and
    long texts.
    """

    name: str
    path: str
    get: PageHandler
    post: PageHandler | None = None
    scope: str | None = SIGNED_IN
    post_scope: str | None = None
    action: str | None = None
    check_enabled: CheckEnabled | None = None
    read_level: ReadLevel = "all"
    has_large_form: bool = False


# How often lists update the durations of active items.
DURATION_STEP_MS: Final = 5000


def list_etag(request: PageRequest, shown: object, *, shows_durations: bool) -> str:
    """Return the ETag of a list: a hash of its content, and of the time if it shows durations."""
    moment = request.now // DURATION_STEP_MS if shows_durations else 0
    return f'"{hashlib.sha256(encode((shown, moment))).hexdigest()[:24]}"'


def not_modified_response(request: PageRequest, tag: str) -> Response | None:
    """Return the 304 response for a script that already has this list; else None."""
    if request.http.header(b"x-part") is None or not request.http.matches_etag(tag):
        return None
    return Response(304, headers=SAFE_HEADERS | {"etag": tag})


def with_etag(response: Response, tag: str) -> Response:
    """Return the response with its ETag."""
    return replace(response, headers=response.headers | {"etag": tag})
