"""A person's request: who it is, what the form says, and the means to answer with a page."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import quote, unquote_plus, urlencode, urlsplit

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
THEMES: Final = ("system", "light", "dark")
TOKEN_FIELD: Final = "csrf"
HTML: Final = "text/html; charset=utf-8"
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
        """The cookies that came along."""
        try:
            jar = SimpleCookie(self.exchange.header(b"cookie") or "")
        except CookieError:
            return {}
        return {name: morsel.value for name, morsel in jar.items()}

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

    async def form(self) -> Form:
        """The form that was sent."""
        return await read_form(self.exchange)

    async def check_form(self, subject: str | None = None) -> None:
        """Refuse a form, or a script's request, that does not come from one of our own pages."""
        given = self.exchange.header(b"x-csrf-token") or (await self.form()).get(TOKEN_FIELD)
        subject = self.session.session_id if subject is None else subject
        if not self.desk.sessions(self.host).is_form_token(subject, given):
            raise Forbidden("this form is not from a page of this session; load the page again")

    # Answers

    async def page(self, template: str, status: int = 200, /, **values: object) -> Answer:
        """A page in the frame, with the number of things that wait."""
        waiting = None
        if self.has("/inbox"):
            waiting = await self.host.store.pending_count(self.tenant)
        return self.render(template, status, waiting, **values)

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

    The start page stands for anything that might lead elsewhere, and for a path or query that
    holds a credential: the path is repeated in pages and in `Location` headers.
    """
    parts = urlsplit(target)
    is_ours = target.startswith("/") and not target.startswith("//") and not parts.netloc
    is_plain = target.isprintable() and target.isascii() and "\\" not in target
    is_repeatable = is_ours and is_plain and not holds_shape(unquote_plus(target))
    return target if is_repeatable else "/"
