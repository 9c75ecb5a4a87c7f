"""Sign in with an API key, sign out, select a theme."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from wopr.console.page import THEMES, Page, PageRequest, local_path, redirect_to
from wopr.http.response import Response
from wopr.protocol.errors import RateLimited, Unauthenticated
from wopr.security.api_keys import hash_key

SIGN_IN: Final = "console.signIn"
SIGN_OUT: Final = "console.signOut"
# The host reads this form before authentication.
MAX_FORM_BYTES: Final = 8192


async def show_sign_in(request: PageRequest) -> Response:
    """Show the form that asks for a key."""
    return _sign_in_page(request, request.query.get("next", "/"))


async def sign_in(request: PageRequest) -> Response:
    """Begin a session and redirect to the page that the browser requested."""
    form = await request.form(MAX_FORM_BYTES)
    await request.check_form(f"visitor:{request.visitor}")
    target = local_path(form.get("next") or "/")
    key = form.get("key")
    find = partial(request.host.keyring.principal, key)
    failed_auth = request.state.app.failed_auth
    try:
        principal = await failed_auth.authenticate(request.http.client_address, find)
    except RateLimited as limited:
        page = _sign_in_page(request, target, limited.message, 429)
        return replace(page, headers=page.headers | {"retry-after": str(limited.retry_after)})
    except Unauthenticated as unknown:
        await _record_failure(request, unknown.code)
        return _sign_in_page(request, target, f"{unknown.message}.", 401)
    await request.host.audit.record(principal.tenant, principal.key_id, SIGN_IN, "console")
    cookie = request.state.sessions(request.host).begin(hash_key(key))
    return request.redirect(target, request.session_cookie(cookie))


def _sign_in_page(
    request: PageRequest, target: str, problem: str = "", status: int = 200
) -> Response:
    page = request.render(
        "sign_in.html",
        status,
        target=local_path(target),
        problem=problem,
        has_ended="ended" in request.query,
        token=request.form_token,
    )
    return replace(page, headers=page.headers | {"set-cookie": request.visitor_cookie()})


async def _record_failure(request: PageRequest, code: str) -> None:
    denials = request.state.app.denials
    if denials is not None:
        await denials.record("", "", SIGN_IN, "console", code=code)


async def sign_out(request: PageRequest) -> Response:
    """End the session."""
    await request.state.sessions(request.host).end(request.session, request.tenant)
    await request.host.audit.record(request.tenant, request.caller.key_id, SIGN_OUT, "console")
    return request.redirect("/sign-in", request.session_cookie(""))


async def ask_sign_out(request: PageRequest) -> Response:
    """Show a button to sign out. A link alone does not sign out."""
    return await request.page("sign_out.html")


async def set_theme(request: PageRequest) -> Response:
    """Store the theme in a cookie."""
    form = await request.form()
    theme = form.choice("theme", THEMES)
    return request.redirect(local_path(form.get("next") or "/"), request.theme_cookie(theme))


async def redirect_to_start(request: PageRequest) -> Response:
    """Redirect to the runs, or to the settings if the key may not read runs."""
    return request.redirect("/runs" if request.can_open("/runs") else "/settings")


async def show_keys(request: PageRequest) -> Response:
    """Show the keyboard shortcuts."""
    return await request.page("keys.html")


PAGES: Final = (
    Page(name="start", path="/", get=redirect_to_start),
    Page(name="signIn", path="/sign-in", get=show_sign_in, post=sign_in, scope=None),
    Page(name="signOut", path="/sign-out", get=ask_sign_out, post=sign_out),
    Page(name="theme", path="/theme", get=redirect_to("/settings"), post=set_theme),
    Page(name="keys", path="/keys", get=show_keys),
)
