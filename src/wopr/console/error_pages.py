"""What a person sees when something cannot be done, and how to go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import quote, urlsplit

from wopr.console.headers import SAFE_HEADERS
from wopr.console.visit import SESSION_COOKIE, Visit, local_path
from wopr.http.answers import Answer, error_answer, error_envelope
from wopr.protocol.errors import NotFound, Unauthenticated, WoprError

_TITLES: Final = {
    400: "That cannot be done",
    403: "You may not do this",
    404: "There is nothing here",
    405: "Not this way",
    409: "It has changed meanwhile",
    410: "It is gone",
    413: "That is too much",
    422: "That cannot be done",
    429: "Too many requests",
    501: "Switched off",
    503: "The host is busy",
}
_WAYS_ON: Final = {
    400: "Go back, change what is named above, and send it again.",
    403: "Sign in with a key that has the scope, or ask somebody who may manage keys.",
    404: "It may have been removed, or it belongs to somebody else. The list shows what there is.",
    409: "Look at it again; it may be done already.",
    429: "Wait a moment and load the page again.",
    503: "Wait a moment and load the page again.",
}


def error_page(visit: Visit, error: WoprError) -> Answer:
    """The page for an error; without a session it is the way to the sign-in page."""
    if isinstance(error, Unauthenticated):
        return _sign_in(visit, error)
    status = error.status
    # Another tenant's thing and one that never was must look alike, to the letter.
    message = "" if isinstance(error, NotFound) else error.message
    answer = visit.render(
        "error.html",
        status,
        code=status,
        title=_TITLES.get(status, "Something went wrong"),
        message=message and error_envelope(error, visit.exchange.redactor).message,
        way_on=_WAYS_ON.get(status, ""),
        scope=error.details.get("scopeRequired", ""),
        correlation_id=error.details.get("correlationId", ""),
    )
    headers = error_answer(error).headers
    return replace(answer, headers=answer.headers | headers)


def _sign_in(visit: Visit, error: WoprError) -> Answer:
    accepted = visit.exchange.header(b"accept") or "*/*"
    if "text/html" not in accepted and "*/*" not in accepted:
        answer = error_answer(error, visit.exchange.redactor)
        return replace(answer, headers=dict(SAFE_HEADERS))
    if _comes_from_elsewhere(visit):
        # A link on another site brings no cookie along; a step of our own does.
        return visit.render("arrive.html")
    ended = "&ended=1" if visit.cookies.get(SESSION_COOKIE) else ""
    back = quote(local_path(_back(visit)), safe="/")
    return visit.redirect(f"/sign-in?next={back}{ended}", visit.session_cookie(""))


def _comes_from_elsewhere(visit: Visit) -> bool:
    site = visit.exchange.header(b"sec-fetch-site")
    is_first_try = SESSION_COOKIE not in visit.cookies
    return site == "cross-site" and is_first_try and visit.exchange.scope["method"] == "GET"


def _back(visit: Visit) -> str:
    """Where to go on after signing in: here, or for a form the page that it was on."""
    if visit.exchange.scope["method"] == "GET":
        return visit.here
    try:
        return urlsplit(visit.exchange.header(b"referer") or "").path or "/"
    except ValueError:
        return "/"
