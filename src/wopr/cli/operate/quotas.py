"""`wopr usage` and `wopr quotas`: usage, and the quotas of tenants and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wopr.cli.client import with_client
from wopr.cli.database import audit_draft, with_store
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.options import DbOption, JsonOption, KeyOption, ServerOptions, UrlOption, completer
from wopr.cli.output import note, print_json, print_json_value, print_line, print_table
from wopr.protocol.documents import Unset
from wopr.protocol.errors import Refused
from wopr.protocol.resources.quotas import LARGEST_LIMIT, TENANT_QUOTAS, QuotaUse, check_quota
from wopr.store.port.usage import QuotaRow

if TYPE_CHECKING:
    from wopr.store.port import Store


QuotaArgument = Annotated[
    str,
    typer.Argument(
        metavar="QUOTA", help="The name of the quota.", autocompletion=completer(TENANT_QUOTAS)
    ),
]
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant.")]
KeyIdOption = Annotated[str, typer.Option("--key", metavar="KEY_ID", help="One key of the tenant.")]

app = typer.Typer(
    help="Show, set and reset quotas of tenants and keys in the database.",
    no_args_is_help=True,
)


@command
def usage(url: UrlOption = None, api_key: KeyOption = None, as_json: JsonOption = False) -> None:
    """Show the usage and quotas of the key and of its tenant."""
    response = with_client(ServerOptions(url, api_key), lambda client: client.usage())
    if as_json:
        print_json(response.body)
        return
    print_table(
        ("QUOTA", "OF", "USED", "LIMIT", "RESETS", "COUNTS"),
        [
            (
                each.quota,
                each.scope,
                f"{each.current:,}",
                _limit(each),
                "" if isinstance(each.resets_at, Unset) else each.resets_at,
                each.description,
            )
            for each in response.document.quotas
        ],
    )


def _limit(use: QuotaUse) -> str:
    return "no limit" if isinstance(use.limit, Unset) else f"{use.limit:,}"


@app.command()
@command
def show(db: DbOption = None, as_json: JsonOption = False) -> None:
    """List the quotas that replace defaults."""
    rows = with_store(db, lambda store: store.quotas())
    if as_json:
        items = [
            {"tenant": r.tenant, "keyId": r.key_id, "quota": r.quota, "limit": r.amount}
            for r in rows
        ]
        print_json_value({"items": items})
        return
    if not rows:
        note("All quotas are the defaults.")
        return
    print_table(
        ("TENANT", "KEY", "QUOTA", "LIMIT"),
        [(r.tenant, r.key_id, r.quota, f"{r.amount:,}" if r.amount else "no limit") for r in rows],
    )


@app.command("set")
@command
def set_quota(
    quota: QuotaArgument,
    limit: Annotated[
        int,
        typer.Argument(
            metavar="LIMIT", min=0, max=LARGEST_LIMIT, help="The limit; 0 means no limit."
        ),
    ],
    tenant: TenantOption = "default",
    key: KeyIdOption = "",
    db: DbOption = None,
) -> None:
    """Set a quota of a tenant or a key. Running hosts use it within seconds."""
    row = QuotaRow(tenant=tenant, key_id=key, quota=_checked_quota(quota, key), amount=limit)

    async def put(store: Store) -> None:
        await store.set_quota(
            row, audit_draft(store, tenant, "quota.set", quota, limit=limit, keyId=key or None)
        )

    with_store(db, put)
    print_line(f"{quota} of {_owner(tenant, key)} is {limit or 'not limited'}")


@app.command()
@command
def reset(
    quota: QuotaArgument,
    tenant: TenantOption = "default",
    key: KeyIdOption = "",
    db: DbOption = None,
) -> None:
    """Return a quota of a tenant or a key to its default."""
    _checked_quota(quota, key)

    async def delete(store: Store) -> bool:
        audit = audit_draft(store, tenant, "quota.reset", quota, keyId=key or None)
        return await store.reset_quota(tenant, key, quota, audit)

    if not with_store(db, delete):
        raise CliError(
            f"{quota} of {_owner(tenant, key)} already is the default",
            ExitCode.NOT_FOUND,
            code="not_found",
            hint="`wopr quotas show` lists the quotas that replace defaults",
        )
    print_line(f"{quota} of {_owner(tenant, key)} is the default")


@app.command()
@command
def recount(db: DbOption = None) -> None:
    """Recount the stored bytes of all tenants. This reads all events."""
    with_store(db, lambda store: store.recount_usage())
    print_line("stored bytes were recounted")


def _checked_quota(quota: str, key_id: str) -> str:
    try:
        return check_quota(quota, key_id)
    except Refused as refused:
        raise CliError(refused.message, ExitCode.USAGE, code=refused.code) from None


def _owner(tenant: str, key_id: str) -> str:
    return f"key {key_id} of tenant {tenant}" if key_id else f"tenant {tenant}"
