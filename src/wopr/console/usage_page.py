"""Usage: what the visitor's tenant and key use of their quotas."""

from __future__ import annotations

from typing import Final

from wopr.console.page import Page
from wopr.console.visit import Visit
from wopr.http.answers import Answer


async def show_usage(visit: Visit) -> Answer:
    """Show use against quota, as bars."""
    report = await visit.host.quotas.report(visit.tenant, visit.caller.key_id)
    by_scope = {
        scope: [use for use in report.quotas if use.scope == scope] for scope in ("tenant", "key")
    }
    return await visit.page("usage.html", uses=by_scope)


PAGES: Final = (Page(name="usage", path="/settings/usage", get=show_usage, scope="runs:read"),)
