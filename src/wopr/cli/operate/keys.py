"""`wopr keys`: create, list, rotate and revoke API keys in the database."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.database import audit_read, now_ms, with_store, write_audit_entry
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.options import DbOption, JsonOption, completer
from wopr.cli.output import note, print_json_value, print_line, print_table
from wopr.cli.values import parse_duration
from wopr.protocol.documents import JsonObject, to_iso
from wopr.security.api_keys import ROLES
from wopr.services.api_keys import generate_key, key_state
from wopr.store.port import KeyRow

if TYPE_CHECKING:
    from wopr.store.port import Store

KeyIdArgument = Annotated[str, typer.Argument(metavar="KEY_ID", help="The id, not the key.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant of the key.")]

app = typer.Typer(
    help="Create, list, rotate and revoke API keys in the database.", no_args_is_help=True
)


@app.command()
@command
def create(
    tenant: TenantOption = "default",
    role: Annotated[
        str, typer.Option(help="What the key may do.", autocompletion=completer(ROLES))
    ] = "developer",
    name: Annotated[str, typer.Option(help="A descriptive name.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="A scope in addition to the role; repeatable."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long the key is valid, such as 90d.")
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="A test key: it may use mocks.")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it. It cannot be shown again."""
    _require_role(role)
    now = now_ms()
    lifetime = None if expires is None else parse_duration(expires, "--expires")
    key, row = generate_key(
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

    async def insert(store: Store) -> None:
        await store.put_key(row)
        await write_audit_entry(
            store, row.tenant, "key.create", row.key_id, role=row.role, scopes=list(row.scopes)
        )

    with_store(db, insert)
    _print_new(key, row, as_json=as_json)


@app.command("list")
@command
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the keys. The secret keys are not stored."""
    now = now_ms()

    async def read(store: Store) -> list[KeyRow]:
        rows = await store.keys(tenant)
        await audit_read(store, tenant or "", "key.list", "keys")
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
    """Create a key that replaces another key, and print it. It cannot be shown again."""
    now = now_ms()
    old_until = now + parse_duration(grace, "--grace")

    async def replace_key(store: Store) -> tuple[str, KeyRow]:
        old = await _find(store, key_id)
        if key_state(old, now) != "active":
            raise CliError(
                f"key {key_id} is {key_state(old, now)}",
                ExitCode.CONFLICT,
                code="key_not_active",
                hint="create another with `wopr keys create`",
            )
        lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        key, new = generate_key(
            replace(old, created_at=now, expires_at=None if lifetime is None else now + lifetime)
        )
        await store.put_key(new)
        until = old_until if old.expires_at is None else min(old_until, old.expires_at)
        await store.update_key(key_id, expires_at=until, replaced_by=new.key_id)
        await write_audit_entry(store, old.tenant, "key.rotate", old.key_id, replacedBy=new.key_id)
        return key, new

    key, new = with_store(db, replace_key)
    if not as_json:
        note(f"the old key {key_id} is valid until {to_iso(old_until)} at the latest")
    _print_new(key, new, as_json=as_json)


@app.command()
@command
def revoke(key_id: KeyIdArgument, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Revoke a key immediately and permanently."""
    now = now_ms()

    async def revoke_key(store: Store) -> KeyRow:
        row = await _find(store, key_id)
        if row.revoked_at is None:
            await store.update_key(key_id, revoked_at=now)
            await write_audit_entry(store, row.tenant, "key.revoke", row.key_id)
            return replace(row, revoked_at=now)
        return row

    row = with_store(db, revoke_key)
    if as_json:
        print_json_value(_document(row, now))
    else:
        print_line(f"key {row.key_id} revoked")


def _require_role(role: str) -> None:
    if role not in ROLES:
        raise typer.BadParameter(
            f"{role!r} is not one of the roles {', '.join(ROLES)}", param_hint="--role"
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
