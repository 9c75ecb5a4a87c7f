"""Sign in with an API key, sign out, and choose the colours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from wopr.console.page import Page
from wopr.console.visit import THEMES, Visit, local_path
from wopr.http.answers import Answer
from wopr.protocol.errors import RateLimited, Unauthenticated
from wopr.security.keys import hash_key

SIGN_IN: Final = "console.signIn"
SIGN_OUT: Final = "console.signOut"
# The form is read before the host knows its sender.
MOST_FORM_BYTES: Final = 8192


async def show_sign_in(visit: Visit) -> Answer:
    """Ask for a key."""
    return _sign_in_page(visit, visit.query.get("next", "/"))


async def sign_in(visit: Visit) -> Answer:
    """Begin a session for the holder of a key, and go where the visitor wanted to."""
    form = await visit.form(MOST_FORM_BYTES)
    await visit.check_form(f"visitor:{visit.visitor}")
    target = local_path(form.get("next") or "/")
    key = form.get("key")
    find = partial(visit.host.keyring.principal, key)
    failed_auth = visit.desk.shared.failed_auth
    try:
        principal = await failed_auth.authenticate(visit.exchange.client_address, find)
    except RateLimited as limited:
        page = _sign_in_page(visit, target, limited.message, 429)
        return replace(page, headers=page.headers | {"retry-after": str(limited.retry_after)})
    except Unauthenticated as unknown:
        await _note_failure(visit, unknown.code)
        return _sign_in_page(visit, target, f"{unknown.message}.", 401)
    await visit.host.audit.record(principal.tenant, principal.key_id, SIGN_IN, "console")
    cookie = visit.desk.sessions(visit.host).begin(hash_key(key))
    return visit.redirect(target, visit.session_cookie(cookie))


def _sign_in_page(visit: Visit, target: str, problem: str = "", status: int = 200) -> Answer:
    page = visit.render(
        "sign_in.html",
        status,
        target=local_path(target),
        problem=problem,
        has_ended="ended" in visit.query,
        token=visit.form_token,
    )
    return replace(page, headers=page.headers | {"set-cookie": visit.visitor_cookie()})


async def _note_failure(visit: Visit, code: str) -> None:
    denials = visit.desk.shared.denials
    if denials is not None:
        await denials.record("", "", SIGN_IN, "console", code=code)


async def sign_out(visit: Visit) -> Answer:
    """End the session for good."""
    await visit.desk.sessions(visit.host).end(visit.session, visit.tenant)
    await visit.host.audit.record(visit.tenant, visit.caller.key_id, SIGN_OUT, "console")
    return visit.redirect("/sign-in", visit.session_cookie(""))


async def ask_sign_out(visit: Visit) -> Answer:
    """Whoever follows a link here has a button to press: a link alone ends nothing."""
    return await visit.page("sign_out.html")


async def set_theme(visit: Visit) -> Answer:
    """Keep the choice of colours."""
    form = await visit.form()
    theme = form.choice("theme", THEMES)
    return visit.redirect(local_path(form.get("next") or "/"), visit.theme_cookie(theme))


async def to_settings(visit: Visit) -> Answer:
    """The choice of colours is on the settings page."""
    return visit.redirect("/settings")


async def start_page(visit: Visit) -> Answer:
    """Go to the first page of the top bar that the visitor may see."""
    return visit.redirect("/runs" if visit.has("/runs") else "/settings")


async def show_keys(visit: Visit) -> Answer:
    """Show what the keyboard does."""
    return await visit.page("keys.html")


PAGES: Final = (
    Page(name="start", path="/", get=start_page),
    Page(name="signIn", path="/sign-in", get=show_sign_in, post=sign_in, scope=None),
    Page(name="signOut", path="/sign-out", get=ask_sign_out, post=sign_out),
    Page(name="theme", path="/theme", get=to_settings, post=set_theme),
    Page(name="keys", path="/keys", get=show_keys),
)
