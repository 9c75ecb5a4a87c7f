"""Settings: the signed-in key, the tenant's keys, processes, limits and usage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wopr.console.page import THEMES, Page, PageRequest, redirect_to
from wopr.host.host import known_processes
from wopr.http.response import Response
from wopr.process.settings import DAY_MS
from wopr.protocol.errors import Forbidden, NotFound, Refused
from wopr.security.api_keys import ROLES
from wopr.services.api_keys import generate_key, key_state
from wopr.store.port import KeyRow, RunFilter, RunRow
from wopr.version import __version__

MANAGE: Final = "keys:manage"
OPERATE: Final = "host:read"
LIFETIMES: Final = {"": "never", "1": "in a day", "30": "in 30 days", "90": "in 90 days"}
_LONGEST_NAME: Final = 100
_MAX_WAITING: Final = 100


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key of the list."""

    row: KeyRow
    state: str
    is_mine: bool


async def show_settings(request: PageRequest) -> Response:
    """Show the settings, with the tenant's keys if the key may manage them."""
    return await _settings_page(request)


async def _settings_page(request: PageRequest, new_key: str = "", problem: str = "") -> Response:
    rows = await request.host.store.keys(request.tenant) if request.may(MANAGE) else []
    return await request.page(
        "settings.html",
        400 if problem else 200,
        keys=[_key_line(request, row) for row in rows],
        roles=_grantable_roles(request),
        lifetimes=LIFETIMES,
        themes=THEMES,
        facts=_host_facts(request),
        processes=await known_processes(request.host) if request.may(OPERATE) else [],
        without_process=await _runs_without_process(request) if request.may(OPERATE) else [],
        new_key=new_key,
        problem=problem,
    )


async def _runs_without_process(request: PageRequest) -> Sequence[RunRow]:
    """Return the tenant's newest runs that wait for a process with the code of a node."""
    where = RunFilter(waits_for_code=True)
    return (await request.host.store.runs(request.tenant, where, None, _MAX_WAITING)).runs


def _key_line(request: PageRequest, row: KeyRow) -> KeyLine:
    return KeyLine(row, key_state(row, request.now), row.key_id == request.caller.key_id)


def _grantable_roles(request: PageRequest) -> list[str]:
    """Return the roles whose scopes the caller has."""
    return [role for role, scopes in ROLES.items() if scopes <= request.caller.scopes]


def _retention_text(days: int) -> str:
    return f"{days} days after their last push" if days else "unlimited"


def _host_facts(request: PageRequest) -> list[tuple[str, str]]:
    """Return the settings that concern tenants: limits and retention times.

    Addresses and paths of the host are not among them: they are only for its operator, and the
    administrator of a tenant is not its operator.
    """
    settings = request.host.settings
    return [
        ("version", __version__),
        ("retention of runs", f"{settings.retention_days} days after their end"),
        ("retention of pushed runs", _retention_text(settings.fleet_keep_days)),
        ("requests per second per key", str(settings.rate_limit or "no limit")),
        ("largest request", f"{settings.max_body_bytes // 1024} KiB"),
        ("node types", str(len(list(request.host.registry)))),
        ("feedback", "on" if settings.feedback else "off"),
        ("minimum confidence of supervisors", f"{settings.confidence_floor:g}"),
    ]


async def create_key(request: PageRequest) -> Response:
    """Create a key for the caller's tenant and show it once."""
    form = await request.form()
    try:
        role = form.choice("role", tuple(ROLES))
        days = form.choice("days", tuple(LIFETIMES))
        name = form.get("name")
        if len(name) > _LONGEST_NAME:
            raise Refused(f"name may have at most {_LONGEST_NAME} characters", field="name")
    except Refused as refused:
        return await _settings_page(request, problem=refused.message)
    if role not in _grantable_roles(request):
        raise Forbidden(f"The role {role} has scopes that your key does not have.")
    key, row = generate_key(
        KeyRow(
            key_id="",
            tenant=request.tenant,
            name=name,
            role=role,
            scopes=(),
            key_hash=b"",
            created_at=request.now,
            is_test=bool(form.get("test")),
            expires_at=request.now + int(days) * DAY_MS if days else None,
        )
    )
    await request.host.store.put_key(row)
    await request.host.audit.record(
        request.tenant, request.caller.key_id, "key.create", row.key_id, role=role
    )
    request.shown_once = key
    return await _settings_page(request, new_key=key)


async def ask_revoke(request: PageRequest) -> Response:
    """Ask for confirmation before a key is revoked."""
    return await request.page("revoke.html", line=_key_line(request, await _own_key(request)))


async def revoke_key(request: PageRequest) -> Response:
    """Revoke a key of the caller's tenant."""
    row = await _own_key(request)
    if row.revoked_at is None:
        await request.host.store.update_key(row.key_id, revoked_at=request.now)
        request.host.keyring.forget(row.key_hash)
        await request.host.audit.record(
            request.tenant, request.caller.key_id, "key.revoke", row.key_id
        )
    return request.redirect("/settings?done=revoked")


async def _own_key(request: PageRequest) -> KeyRow:
    wanted = request.http.path["key_id"]
    for row in await request.host.store.keys(request.tenant):
        if row.key_id == wanted:
            return row
    raise NotFound("This key does not exist.")


async def show_usage(request: PageRequest) -> Response:
    """Show usage and quotas as bars."""
    report = await request.host.quotas.report(request.tenant, request.caller.key_id)
    by_scope = {
        scope: [use for use in report.quotas if use.scope == scope] for scope in ("tenant", "key")
    }
    return await request.page("usage.html", uses=by_scope)


PAGES: Final = (
    Page(name="settings", path="/settings", get=show_settings, read_level="sensitive"),
    Page(
        name="create-key",
        path="/settings/keys",
        get=redirect_to("/settings"),
        post=create_key,
        scope=MANAGE,
        action="key.create",
    ),
    Page(
        name="revoke-key",
        path="/settings/keys/{key_id}/revoke",
        get=ask_revoke,
        post=revoke_key,
        scope=MANAGE,
        action="key.revoke",
    ),
    Page(name="usage", path="/settings/usage", get=show_usage, scope="runs:read"),
)
