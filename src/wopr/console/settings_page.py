"""Settings: who is signed in, the tenant's keys, the host's processes, and the host's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wopr import __version__
from wopr.console.page import Page
from wopr.console.visit import THEMES, Visit
from wopr.http.answers import Answer
from wopr.protocol.errors import Forbidden, NotFound, Refused
from wopr.runtime.keyring import key_state, mint
from wopr.runtime.readiness import known_processes
from wopr.runtime.settings import DAY_MS
from wopr.security.keys import ROLES
from wopr.store.port import KeyRow, RunFilter, RunRow

MANAGE: Final = "keys:manage"
OPERATE: Final = "host:read"
LIFETIMES: Final = {"": "never", "1": "in a day", "30": "in 30 days", "90": "in 90 days"}
_LONGEST_NAME: Final = 100
_MOST_WAITING: Final = 100


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key of the list."""

    row: KeyRow
    state: str
    is_mine: bool


async def show_settings(visit: Visit) -> Answer:
    """Show all of it; the keys to those who may manage them."""
    return await _settings(visit)


async def _settings(visit: Visit, new_key: str = "", problem: str = "") -> Answer:
    rows = await visit.host.store.keys(visit.tenant) if visit.may(MANAGE) else []
    return await visit.page(
        "settings.html",
        400 if problem else 200,
        keys=[_line(visit, row) for row in rows],
        roles=_grantable(visit),
        lifetimes=LIFETIMES,
        themes=THEMES,
        facts=_facts(visit),
        processes=await known_processes(visit.host) if visit.may(OPERATE) else [],
        without_process=await _waiting(visit) if visit.may(OPERATE) else [],
        new_key=new_key,
        problem=problem,
    )


async def _waiting(visit: Visit) -> Sequence[RunRow]:
    """The newest of the tenant's runs that wait for a process with the code of a node."""
    where = RunFilter(waits_for_code=True)
    return (await visit.host.store.runs(visit.tenant, where, None, _MOST_WAITING)).runs


def _line(visit: Visit, row: KeyRow) -> KeyLine:
    return KeyLine(row, key_state(row, visit.now), row.key_id == visit.caller.key_id)


def _grantable(visit: Visit) -> list[str]:
    """The roles that give away no scope which the caller does not hold."""
    return [role for role, scopes in ROLES.items() if scopes <= visit.caller.scopes]


def _kept(days: int) -> str:
    return f"{days} days after their last push" if days else "for ever"


def _facts(visit: Visit) -> list[tuple[str, str]]:
    """List the settings that concern tenants: limits and times of retention.

    Addresses and paths of the host are for its operator only. Every visitor of the console, also
    a tenant's administrator, is a client.
    """
    settings = visit.host.settings
    return [
        ("version", __version__),
        ("runs are kept", f"{settings.retention_days} days after they end"),
        ("pushed runs are kept", _kept(settings.fleet_keep_days)),
        ("requests per second and key", str(settings.rate_limit or "no limit")),
        ("largest request", f"{settings.max_body_bytes // 1024} KiB"),
        ("node types", str(len(list(visit.host.registry)))),
        ("feedback", "on" if settings.feedback else "off"),
        ("supervisors must be sure to", f"{settings.confidence_floor:g}"),
    ]


async def create_key(visit: Visit) -> Answer:
    """Make a key for the visitor's own tenant and show it, this once."""
    form = await visit.form()
    try:
        role = form.choice("role", tuple(ROLES))
        days = form.choice("days", tuple(LIFETIMES))
        name = form.get("name")
        if len(name) > _LONGEST_NAME:
            raise Refused(f"name may have {_LONGEST_NAME} characters", field="name")
    except Refused as refused:
        return await _settings(visit, problem=refused.message)
    if role not in _grantable(visit):
        raise Forbidden(f"a key of the role {role} could do more than yours")
    key, row = mint(
        KeyRow(
            key_id="",
            tenant=visit.tenant,
            name=name,
            role=role,
            scopes=(),
            key_hash=b"",
            created_at=visit.now,
            is_test=bool(form.get("test")),
            expires_at=visit.now + int(days) * DAY_MS if days else None,
        )
    )
    await visit.host.store.put_key(row)
    await visit.host.audit.record(
        visit.tenant, visit.caller.key_id, "key.create", row.key_id, role=role
    )
    visit.shown_once = key
    return await _settings(visit, new_key=key)


async def to_settings(visit: Visit) -> Answer:
    """The form is on the settings page."""
    return visit.redirect("/settings")


async def ask_revoke(visit: Visit) -> Answer:
    """Ask before a key is revoked."""
    return await visit.page("revoke.html", line=_line(visit, await _own_key(visit)))


async def revoke_key(visit: Visit) -> Answer:
    """Make a key of the visitor's own tenant invalid, at once and for good."""
    row = await _own_key(visit)
    if row.revoked_at is None:
        await visit.host.store.update_key(row.key_id, revoked_at=visit.now)
        visit.host.keyring.forget(row.key_hash)
        await visit.host.audit.record(visit.tenant, visit.caller.key_id, "key.revoke", row.key_id)
    return visit.redirect("/settings?done=revoked")


async def _own_key(visit: Visit) -> KeyRow:
    wanted = visit.exchange.path["key_id"]
    for row in await visit.host.store.keys(visit.tenant):
        if row.key_id == wanted:
            return row
    raise NotFound("there is no such key")


PAGES: Final = (
    Page(name="settings", path="/settings", get=show_settings, read="sensitive"),
    Page(
        name="create-key",
        path="/settings/keys",
        get=to_settings,
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
)
