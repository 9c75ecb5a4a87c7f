"""`wopr keys`: make, list, rotate and revoke API keys, on the database itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.local_store import now_ms, record, record_read, with_store
from wopr.cli.options import DbOption, JsonOption
from wopr.cli.output import note, print_json_value, print_line, print_table
from wopr.cli.values import parse_duration
from wopr.protocol.documents import JsonObject
from wopr.protocol.times import to_iso
from wopr.runtime.keyring import key_state, mint
from wopr.security.keys import ROLES
from wopr.store.port import KeyRow

if TYPE_CHECKING:
    from wopr.store.port import Store

KeyIdArgument = Annotated[str, typer.Argument(metavar="KEY_ID", help="The id, not the key.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant whose data it opens.")]

app = typer.Typer(
    help="Make, list, rotate and revoke API keys, on the database itself.", no_args_is_help=True
)


def _complete_role(begun: str) -> list[str]:
    return [role for role in ROLES if role.startswith(begun)]


@app.command()
@command
def create(
    tenant: TenantOption = "default",
    role: Annotated[
        str, typer.Option(help="What the key may do.", autocompletion=_complete_role)
    ] = "developer",
    name: Annotated[str, typer.Option(help="A name to know it by.")] = "",
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="A scope beside the role's; repeatable.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Valid for that long, such as 90d.")
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="A test key: it may use mocks.")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it, this once."""
    _require_role(role)
    now = now_ms()
    lifetime = None if expires is None else parse_duration(expires, "--expires")
    key, row = mint(
        KeyRow(
            key_id="",
            tenant=tenant,
            name=name,
            role=role,
            scopes=tuple(scope or ()),
            key_hash=b"",
            created_at=now,
            is_test=test,
            expires_at=None if lifetime is None else now + lifetime,
        )
    )

    async def keep(store: Store) -> None:
        await store.put_key(row)
        await record(
            store, row.tenant, "key.create", row.key_id, role=row.role, scopes=list(row.scopes)
        )

    with_store(db, keep)
    _print_new(key, row, as_json=as_json)


@app.command("list")
@command
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """List keys; the keys themselves are nowhere to be read."""
    now = now_ms()

    async def read(store: Store) -> list[KeyRow]:
        rows = await store.keys(tenant)
        await record_read(store, tenant or "", "key.list", "keys")
        return rows

    rows = with_store(db, read)
    if as_json:
        print_json_value({"items": [_document(row, now) for row in rows]})
        return
    print_table(
        ("KEY ID", "TENANT", "ROLE", "NAME", "STATE", "CREATED", "EXPIRES"),
        (
            (
                row.key_id,
                row.tenant,
                row.role,
                row.name,
                key_state(row, now),
                to_iso(row.created_at),
                "" if row.expires_at is None else to_iso(row.expires_at),
            )
            for row in rows
        ),
    )


@app.command()
@command
def rotate(
    key_id: KeyIdArgument,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the old key stays valid.")
    ] = "24h",
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key that takes another's place, and print it, this once."""
    now = now_ms()
    old_until = now + parse_duration(grace, "--grace")

    async def exchange(store: Store) -> tuple[str, KeyRow]:
        old = await _find(store, key_id)
        if key_state(old, now) != "active":
            raise CliError(
                f"key {key_id} is {key_state(old, now)}",
                ExitCode.CONFLICT,
                code="key_not_active",
                hint="make another with `wopr keys create`",
            )
        lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        key, new = mint(
            replace(old, created_at=now, expires_at=None if lifetime is None else now + lifetime)
        )
        await store.put_key(new)
        until = old_until if old.expires_at is None else min(old_until, old.expires_at)
        await store.update_key(key_id, expires_at=until, replaced_by=new.key_id)
        await record(store, old.tenant, "key.rotate", old.key_id, replacedBy=new.key_id)
        return key, new

    key, new = with_store(db, exchange)
    if not as_json:
        note(f"the old key {key_id} is valid until {to_iso(old_until)} at the latest")
    _print_new(key, new, as_json=as_json)


@app.command()
@command
def revoke(key_id: KeyIdArgument, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Make a key invalid at once and for good."""
    now = now_ms()

    async def end(store: Store) -> KeyRow:
        row = await _find(store, key_id)
        if row.revoked_at is None:
            await store.update_key(key_id, revoked_at=now)
            await record(store, row.tenant, "key.revoke", row.key_id)
            return replace(row, revoked_at=now)
        return row

    row = with_store(db, end)
    if as_json:
        print_json_value(_document(row, now))
    else:
        print_line(f"key {row.key_id} revoked")


def _require_role(role: str) -> None:
    if role not in ROLES:
        raise typer.BadParameter(
            f"{role!r} is not a role; the roles are {', '.join(ROLES)}", param_hint="--role"
        )


async def _find(store: Store, key_id: str) -> KeyRow:
    for row in await store.keys():
        if row.key_id == key_id:
            return row
    raise CliError(
        f"there is no key {key_id}",
        ExitCode.NOT_FOUND,
        code="not_found",
        hint="`wopr keys list` shows the ids",
    )


def _document(row: KeyRow, now: int) -> JsonObject:
    moments = {
        "createdAt": row.created_at,
        "expiresAt": row.expires_at,
        "revokedAt": row.revoked_at,
    }
    document: JsonObject = {
        "keyId": row.key_id,
        "tenant": row.tenant,
        "role": row.role,
        "name": row.name,
        "scopes": list(row.scopes),
        "isTest": row.is_test,
        "state": key_state(row, now),
        **{name: to_iso(moment) for name, moment in moments.items() if moment is not None},
    }
    if row.replaced_by is not None:
        document["replacedBy"] = row.replaced_by
    return document


def _print_new(key: str, row: KeyRow, *, as_json: bool) -> None:
    if as_json:
        print_json_value({**_document(row, row.created_at), "key": key})
        return
    print_line(key)
    note(f"key {row.key_id} for tenant {row.tenant}, role {row.role}; it is not shown again")
