"""A person's request: who it is, what the form says, and the means to answer with a page."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final
from urllib.parse import quote, unquote_plus, urlencode

import anyio.to_thread

from wopr.console.desk import Desk
from wopr.console.form import Form, read_form
from wopr.console.headers import SAFE_HEADERS
from wopr.console.nav import NAV, NavItem
from wopr.console.render import macro, render
from wopr.console.session import LIFETIME_MS, Session
from wopr.http.answers import Answer
from wopr.http.exchange import Exchange
from wopr.protocol.errors import Forbidden, NotProvided, Unauthenticated
from wopr.runtime.host import Host
from wopr.runtime.settings import Settings
from wopr.security.keys import Principal
from wopr.security.shapes import holds_shape

SESSION_COOKIE: Final = "wopr_session"
VISITOR_COOKIE: Final = "wopr_visitor"
THEME_COOKIE: Final = "wopr_theme"
_COOKIES: Final = frozenset({SESSION_COOKIE, VISITOR_COOKIE, THEME_COOKIE})
THEMES: Final = ("system", "light", "dark")
TOKEN_FIELD: Final = "csrf"
HTML: Final = "text/html; charset=utf-8"
# Characters of a path that a page or a redirect repeats.
LONGEST_PATH: Final = 2_000
# Characters of a cookie's value. A session has about 250.
LONGEST_COOKIE: Final = 1_000
_YEAR_SECONDS: Final = 365 * 86_400
_VISITOR: Final = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True)
class Fragments:
    """Renders pieces of a page. It does not change, so a worker thread may use it."""

    shared: Mapping[str, object]

    def render(self, template: str, **values: object) -> str:
        """One piece."""
        return render(template, **self.shared, **values).decode()

    def macro(self, template: str, name: str) -> Callable[..., str]:
        """A macro of a template, for pieces of which there are many."""
        return macro(template, name, self.shared)


class Visit:
    """A request as pages see it."""

    def __init__(self, desk: Desk, exchange: Exchange) -> None:
        self.desk = desk
        self.exchange = exchange
        # An empty field of a form asks for nothing.
        exchange.query = {name: value for name, value in exchange.query.items() if value}
        self.query = exchange.query
        # A new key, which its page shows although it is a credential.
        self.shown_once = ""

    @property
    def host(self) -> Host:
        """The host that is served."""
        return self.exchange.host

    @property
    def caller(self) -> Principal:
        """Who is signed in."""
        return self.exchange.caller

    @property
    def tenant(self) -> str:
        """The tenant of who is signed in."""
        return self.exchange.tenant

    def may(self, scope: str) -> bool:
        """Tell whether whoever is signed in holds a scope."""
        principal = self.exchange.principal
        return principal is not None and principal.may(scope)

    def has(self, path: str) -> bool:
        """Tell whether the console has this page and the visitor may see it."""
        if self.exchange.principal is None or path not in self.desk.scopes:
            return False
        scope = self.desk.scopes[path]
        return (not scope or self.may(scope)) and self._is_offered(path)

    def _is_offered(self, path: str) -> bool:
        try:
            self.desk.offers.get(path, _always)(self.host.settings)
        except NotProvided:
            return False
        return True

    @cached_property
    def now(self) -> int:
        """The time of this request."""
        return self.host.sources.now()

    @property
    def here(self) -> str:
        """The path and query of this request."""
        query = urlencode(self.query)
        path = quote(str(self.exchange.scope["path"]))
        return f"{path}?{query}" if query else path

    # Sessions and forms

    @cached_property
    def cookies(self) -> dict[str, str]:
        """The cookies of the console; of a repeated one the last counts, and long ones are ignored.

        Their values hold no quotes or escapes, so the header is only split. `http.cookies` can take
        seconds for one header.
        """
        sent = (self.exchange.header(b"cookie") or "").split(";")
        pairs = (each.strip().partition("=") for each in sent)
        return {
            name: value
            for name, _, value in pairs
            if name in _COOKIES and len(value) <= LONGEST_COOKIE
        }

    @cached_property
    def session(self) -> Session:
        """The session of the cookie. Raises `Unauthenticated` when there is none."""
        cookie = self.cookies.get(SESSION_COOKIE)
        if not cookie:
            raise Unauthenticated("sign in first")
        return self.desk.sessions(self.host).read(cookie)

    @cached_property
    def visitor(self) -> str:
        """A name for the browser of somebody who has not signed in; a new one unless it has one."""
        known = self.cookies.get(VISITOR_COOKIE, "")
        # It is sent back as it came, so it must be what this host would have given out.
        return known if _VISITOR.fullmatch(known) else secrets.token_urlsafe(16)

    @property
    def form_token(self) -> str:
        """What this visitor's forms must carry."""
        return self.desk.sessions(self.host).form_token(self._subject)

    @property
    def _subject(self) -> str:
        is_in = self.exchange.principal is not None
        return self.session.session_id if is_in else f"visitor:{self.visitor}"

    async def form(self, most: int | None = None) -> Form:
        """The form that was sent, of at most so many bytes."""
        return await read_form(self.exchange, most)

    async def check_form(self, subject: str | None = None) -> None:
        """Refuse a form, or a script's request, that does not come from one of our own pages."""
        given = self.exchange.header(b"x-csrf-token") or (await self.form()).get(TOKEN_FIELD)
        subject = self.session.session_id if subject is None else subject
        if not self.desk.sessions(self.host).is_form_token(subject, given):
            raise Forbidden("this form is not from a page of this session; load the page again")

    # Answers

    async def page(self, template: str, status: int = 200, /, **values: object) -> Answer:
        """A page in the frame, with the number of things that wait."""
        return self.render(template, status, await self._waiting(), **values)

    async def large_page(self, template: str, /, **values: object) -> Answer:
        """A page that may take long to render: a thread does it."""
        render = partial(self.render, template, 200, await self._waiting(), **values)
        return await anyio.to_thread.run_sync(render)

    async def _waiting(self) -> int | None:
        """How many things wait for a person; None for visitors without an inbox."""
        return await self.host.store.pending_count(self.tenant) if self.has("/inbox") else None

    def heavy(self) -> AbstractAsyncContextManager[None]:
        """Read whole runs during the block, in turn with other readers of the tenant."""
        return self.host.heavy_reads.turn(self.tenant)

    def render(
        self, template: str, status: int = 200, waiting: int | None = None, /, **values: object
    ) -> Answer:
        """A page in the frame; one that a script asked for comes without the frame."""
        is_part = self.exchange.header(b"x-part") is not None
        body = render(
            template,
            layout="part.html" if is_part else "frame.html",
            waiting=waiting,
            **self._values(),
            **values,
        )
        return Answer(status, body, HTML, dict(SAFE_HEADERS))

    def fragments(self, **values: object) -> Fragments:
        """A renderer of pieces of a page that share these values."""
        return Fragments(self._values() | values)

    def _values(self) -> dict[str, object]:
        """What every template may use."""
        principal = self.exchange.principal
        return {
            "me": principal,
            "nav": self._nav(),
            "csrf": "" if principal is None else self.form_token,
            "theme": self.theme,
            "here": local_path(self.here),
            "path": self.exchange.scope["path"],
            "now": self.now,
            "may": self.may,
            "has": self.has,
            "done": self.query.get("done", ""),
        }

    def redirect(self, path: str, cookie: str = "") -> Answer:
        """Send the browser to another page of the console."""
        headers = SAFE_HEADERS | {"location": path}
        return Answer(303, headers=headers | ({"set-cookie": cookie} if cookie else {}))

    @property
    def theme(self) -> str:
        """The colours that the visitor chose."""
        chosen = self.cookies.get(THEME_COOKIE, "")
        return chosen if chosen in THEMES else THEMES[0]

    def _nav(self) -> list[NavItem]:
        return [item for item in NAV if self.has(item.path)]

    # Cookies to set

    def session_cookie(self, value: str) -> str:
        """The header that sets the session, or with an empty value takes it away."""
        return self._cookie(SESSION_COOKIE, value, LIFETIME_MS // 1000 if value else 0)

    def visitor_cookie(self) -> str:
        """The header that names the visitor's browser."""
        return self._cookie(VISITOR_COOKIE, self.visitor, LIFETIME_MS // 1000)

    def theme_cookie(self, theme: str) -> str:
        """The header that keeps the choice of colours."""
        return self._cookie(THEME_COOKIE, theme, _YEAR_SECONDS)

    def _cookie(self, name: str, value: str, seconds: int) -> str:
        secure = "; Secure" if self._is_over_tls else ""
        return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    @property
    def _is_over_tls(self) -> bool:
        is_public_https = self.host.settings.public_url.startswith("https:")
        return is_public_https or self.exchange.scope.get("scheme") == "https"


def _always(settings: Settings) -> None:
    """Offer a page, whatever is set."""


def local_path(target: str) -> str:
    """Return a path of this console to go to.

    The start page stands for anything that might lead elsewhere, for a path or query that holds a
    credential, and for a very long one: the path is repeated in pages and in `Location` headers.
    """
    if len(target) > LONGEST_PATH:
        return "/"
    is_ours = target.startswith("/") and not target.startswith("//")
    is_plain = target.isprintable() and target.isascii() and "\\" not in target
    is_repeatable = is_ours and is_plain and not holds_shape(unquote_plus(target))
    return target if is_repeatable else "/"
