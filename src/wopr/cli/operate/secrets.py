"""`wopr secrets`: credentials of tenants, stored encrypted in the database."""

from __future__ import annotations

import os
import secrets as token_source
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.database import (
    audit_read,
    data_dir,
    now_ms,
    with_store,
    write_audit_entry,
)
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.operate.keys import TenantOption
from wopr.cli.options import DbOption, JsonOption
from wopr.cli.output import note, print_json_value, print_table
from wopr.protocol.documents import JsonObject, to_iso
from wopr.security.credential_names import SEAL_PURPOSE, is_name, seal_context
from wopr.security.encryption import NONCE_BYTES, Seal, derive
from wopr.security.redact import MIN_SECRET
from wopr.store.port import SecretRow

if TYPE_CHECKING:
    from wopr.store.port import Store

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name, as in credentialsRef.")
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="The directory of the host key. Default: WOPR_DATA_DIR or ./data"
    ),
]

app = typer.Typer(
    help="Store, list and remove credentials that runs use by name.", no_args_is_help=True
)


@app.command("set")
@command
def set_secret(
    name: NameArgument,
    tenant: TenantOption = "default",
    audience: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            metavar="HOST",
            help="A host or model provider that may receive it; repeatable. Default: "
            "all model providers.",
        ),
    ] = None,
    data: DataOption = None,
    db: DbOption = None,
) -> None:
    """Store a credential from standard input or a prompt. It cannot be shown again."""
    from wopr.process.keys import load_host_key

    if not is_name(name):
        raise typer.BadParameter(
            f"{name!r} is not a name of letters, digits, dots, dashes and underscores",
            param_hint="NAME",
        )
    value = _read_value()
    seal = Seal(derive(load_host_key(data_dir(data), os.environ), SEAL_PURPOSE))
    row = SecretRow(
        name=name,
        sealed=seal.seal(
            value.encode(),
            nonce=token_source.token_bytes(NONCE_BYTES),
            context=seal_context(tenant, name),
        ),
        audience=tuple(audience or ()),
        updated_at=now_ms(),
    )

    async def put(store: Store) -> None:
        await store.put_secret(tenant, row)
        await write_audit_entry(store, tenant, "secret.set", name)

    with_store(db, put, data)
    note(f"credential {name} of tenant {tenant} is stored")


@app.command("list")
@command
def list_secrets(
    tenant: TenantOption = "default", db: DbOption = None, as_json: JsonOption = False
) -> None:
    """List the names of credentials. The values are not shown."""

    async def read(store: Store) -> list[SecretRow]:
        rows = await store.secrets(tenant)
        await audit_read(store, tenant, "secret.list", "secrets")
        return rows

    rows = with_store(db, read)
    if as_json:
        print_json_value({"items": [_document(row) for row in rows]})
        return
    print_table(
        ("NAME", "FOR", "UPDATED"),
        ((row.name, ", ".join(row.audience), to_iso(row.updated_at)) for row in rows),
    )


@app.command()
@command
def remove(name: NameArgument, tenant: TenantOption = "default", db: DbOption = None) -> None:
    """Delete a credential. Runs that use it fail from then on."""

    async def delete(store: Store) -> bool:
        is_deleted = await store.delete_secret(tenant, name)
        if is_deleted:
            await write_audit_entry(store, tenant, "secret.remove", name)
        return is_deleted

    if not with_store(db, delete):
        raise CliError(
            f"tenant {tenant} has no credential {name}", ExitCode.NOT_FOUND, code="not_found"
        )
    note(f"credential {name} of tenant {tenant} is deleted")


def _read_value() -> str:
    """Read the value from standard input, so that it is not in shell histories or process lists."""
    if sys.stdin.isatty():
        value: str = typer.prompt("Value", hide_input=True)
    else:
        value = sys.stdin.read()
    value = value.strip()
    if len(value) < MIN_SECRET:
        raise CliError(f"a credential must have at least {MIN_SECRET} characters", ExitCode.USAGE)
    return value


def _document(row: SecretRow) -> JsonObject:
    return {
        "name": row.name,
        "audience": list(row.audience),
        "updatedAt": to_iso(row.updated_at),
    }
