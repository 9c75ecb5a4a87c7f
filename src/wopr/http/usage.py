"""Use against quota, and the quotas that an operator sets for tenants and keys."""

from __future__ import annotations

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange
from wopr.http.operation import Operation, Parameter
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.errors import NotFound
from wopr.protocol.quotas import QuotaList, QuotaSetting, SetQuota, UsageReport, check_quota
from wopr.store.port.audit import AuditDraft
from wopr.store.port.usage import QuotaRow

# No role has this scope: the operator of the host grants it by name.
MANAGE = "quotas:manage"


async def get_usage(exchange: Exchange) -> Answer:
    """Read what the tenant of the key, and the key itself, use of their quotas."""
    return ok(await exchange.host.quotas.report(exchange.tenant, exchange.caller.key_id))


async def list_quotas(exchange: Exchange) -> Answer:
    """List the quotas of all tenants and keys that replace defaults."""
    rows = await exchange.host.store.quotas()
    return ok(QuotaList(items=[_document(row) for row in rows]))


async def set_quota(exchange: Exchange) -> Answer:
    """Set a quota of a tenant, or of one of its keys, in place of the default."""
    wanted = await exchange.document(SetQuota)
    key_id = "" if isinstance(wanted.key_id, Unset) else wanted.key_id
    quota = check_quota(exchange.path["quota"], key_id)
    row = QuotaRow(tenant=exchange.path["tenant"], key_id=key_id, quota=quota, amount=wanted.limit)
    audit = _audit(exchange, "quota.set", row.tenant, key_id, quota, wanted.limit)
    await exchange.host.store.set_quota(row, audit)
    await exchange.host.quotas.read()
    return ok(_document(row))


async def reset_quota(exchange: Exchange) -> Answer:
    """Return a quota of a tenant, or of one of its keys, to its default."""
    tenant, key_id = exchange.path["tenant"], exchange.query.get("keyId", "")
    quota = check_quota(exchange.path["quota"], key_id)
    audit = _audit(exchange, "quota.reset", tenant, key_id, quota, None)
    if not await exchange.host.store.reset_quota(tenant, key_id, quota, audit):
        raise NotFound(f"the quota {quota} of this tenant or key is the default")
    await exchange.host.quotas.read()
    return Answer(204)


def _audit(
    exchange: Exchange, action: str, tenant: str, key_id: str, quota: str, limit: int | None
) -> AuditDraft:
    principal = exchange.caller.key_id
    return exchange.host.audit.draft(
        tenant, principal, action, quota, limit=limit, keyId=key_id or None
    )


def _document(row: QuotaRow) -> QuotaSetting:
    return QuotaSetting(
        tenant=row.tenant, quota=row.quota, limit=row.amount, key_id=row.key_id or UNSET
    )


OPERATIONS = (
    Operation(
        name="getUsage",
        method="GET",
        path="/v1/usage",
        handler=get_usage,
        summary="Read the use of this tenant and this key against their quotas",
        tag="host",
        scope="runs:read",
        answer=UsageReport,
        errors=(401, 403, 429),
        is_extension=True,
    ),
    Operation(
        name="listQuotas",
        method="GET",
        path="/v1/quotas",
        handler=list_quotas,
        summary="List the quotas of all tenants and keys that replace defaults",
        tag="host",
        scope=MANAGE,
        answer=QuotaList,
        errors=(401, 403),
        is_extension=True,
        action="quota.list",
    ),
    Operation(
        name="setQuota",
        method="PUT",
        path="/v1/quotas/{tenant}/{quota}",
        handler=set_quota,
        summary="Set a quota of a tenant, or of one of its keys",
        tag="host",
        scope=MANAGE,
        body=SetQuota,
        answer=QuotaSetting,
        errors=(400, 401, 403),
        is_extension=True,
        action="quota.set",
    ),
    Operation(
        name="resetQuota",
        method="DELETE",
        path="/v1/quotas/{tenant}/{quota}",
        handler=reset_quota,
        summary="Return a quota of a tenant, or of one of its keys, to its default",
        tag="host",
        scope=MANAGE,
        success=204,
        errors=(400, 401, 403, 404),
        parameters=(
            Parameter(
                name="keyId", description="The key whose quota it is.", schema={"type": "string"}
            ),
        ),
        is_extension=True,
        action="quota.reset",
    ),
)
