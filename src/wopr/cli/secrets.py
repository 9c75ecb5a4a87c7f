"""`wopr secrets`: credentials of tenants, sealed on the database itself."""

from __future__ import annotations

import os
import secrets as random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode
from wopr.cli.keys import TenantOption
from wopr.cli.local_store import now_ms, record, record_read, with_store
from wopr.cli.options import DbOption, JsonOption
from wopr.cli.output import note, print_json_value, print_table
from wopr.cli.paths import data_dir
from wopr.protocol.documents import JsonObject
from wopr.protocol.times import to_iso
from wopr.security.credential_names import SEAL_PURPOSE, is_name, seal_context
from wopr.security.redact import MIN_SECRET
from wopr.security.seal import NONCE_BYTES, Seal, derive
from wopr.store.port import SecretRow

if TYPE_CHECKING:
    from wopr.store.port import Store

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What credentialsRef names.")]
DataOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where the host key lies. Default: WOPR_DATA_DIR or ./data"),
]

app = typer.Typer(
    help="Keep, list and remove credentials that runs use by name.", no_args_is_help=True
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
            help="A host or model provider that it may be sent to; repeatable. Without any, "
            "it goes to model providers only.",
        ),
    ] = None,
    data: DataOption = None,
    db: DbOption = None,
) -> None:
    """Keep a credential, read from standard input or asked for; it is never shown again."""
    from wopr.runtime.host_secret import host_secret

    if not is_name(name):
        raise typer.BadParameter("letters, digits, dots, dashes and underscores", param_hint="NAME")
    value = _read_value()
    seal = Seal(derive(host_secret(data_dir(data), os.environ), SEAL_PURPOSE))
    row = SecretRow(
        name=name,
        sealed=seal.seal(
            value.encode(),
            nonce=random.token_bytes(NONCE_BYTES),
            context=seal_context(tenant, name),
        ),
        audience=tuple(audience or ()),
        updated_at=now_ms(),
    )

    async def keep(store: Store) -> None:
        await store.put_secret(tenant, row)
        await record(store, tenant, "secret.set", name)

    with_store(db, keep, data)
    note(f"credential {name} of tenant {tenant} is kept")


@app.command("list")
@command
def list_secrets(
    tenant: TenantOption = "default", db: DbOption = None, as_json: JsonOption = False
) -> None:
    """List the names of credentials; their values are nowhere to be read."""

    async def read(store: Store) -> list[SecretRow]:
        rows = await store.secrets(tenant)
        await record_read(store, tenant, "secret.list", "secrets")
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
    """Forget a credential; runs that name it fail from then on."""

    async def forget(store: Store) -> bool:
        is_gone = await store.delete_secret(tenant, name)
        if is_gone:
            await record(store, tenant, "secret.remove", name)
        return is_gone

    if not with_store(db, forget):
        raise CliError(
            f"tenant {tenant} has no credential {name}", ExitCode.NOT_FOUND, code="not_found"
        )
    note(f"credential {name} of tenant {tenant} is forgotten")


def _read_value() -> str:
    """The value from standard input, so that it stands in no history and no list of processes."""
    if sys.stdin.isatty():
        value: str = typer.prompt("Value", hide_input=True)
    else:
        value = sys.stdin.read()
    value = value.strip()
    if len(value) < MIN_SECRET:
        raise CliError(f"a credential has at least {MIN_SECRET} characters", ExitCode.USAGE)
    return value


def _document(row: SecretRow) -> JsonObject:
    return {
        "name": row.name,
        "audience": list(row.audience),
        "updatedAt": to_iso(row.updated_at),
    }
