"""Routes of quotas: usage, and the quotas that an operator sets for tenants and keys."""

from __future__ import annotations

from wopr.http.operation import Operation, Parameter
from wopr.http.request import Request
from wopr.http.response import Response, ok
from wopr.protocol.documents import UNSET, Unset
from wopr.protocol.errors import NotFound
from wopr.protocol.resources.quotas import (
    QuotaList,
    QuotaSetting,
    SetQuota,
    UsageReport,
    check_quota,
)
from wopr.store.port.audit import AuditDraft
from wopr.store.port.usage import QuotaRow

# No role includes this scope. An operator grants it by name.
MANAGE_SCOPE = "quotas:manage"


async def get_usage(request: Request) -> Response:
    """Read the usage and quotas of the key and of its tenant."""
    return ok(await request.host.quotas.report(request.tenant, request.caller.key_id))


async def list_quotas(request: Request) -> Response:
    """List the quotas of all tenants and keys that replace defaults."""
    rows = await request.host.store.quotas()
    return ok(QuotaList(items=[_quota_setting(row) for row in rows]))


async def set_quota(request: Request) -> Response:
    """Set a quota of a tenant, or of one of its keys, in place of the default."""
    wanted = await request.document(SetQuota)
    key_id = "" if isinstance(wanted.key_id, Unset) else wanted.key_id
    quota = check_quota(request.path["quota"], key_id)
    row = QuotaRow(tenant=request.path["tenant"], key_id=key_id, quota=quota, amount=wanted.limit)
    audit = _audit_draft(request, "quota.set", row.tenant, key_id, quota, wanted.limit)
    await request.host.store.set_quota(row, audit)
    await request.host.quotas.read()
    return ok(_quota_setting(row))


async def reset_quota(request: Request) -> Response:
    """Return a quota of a tenant, or of one of its keys, to its default."""
    tenant, key_id = request.path["tenant"], request.query.get("keyId", "")
    quota = check_quota(request.path["quota"], key_id)
    audit = _audit_draft(request, "quota.reset", tenant, key_id, quota, None)
    if not await request.host.store.reset_quota(tenant, key_id, quota, audit):
        raise NotFound(f"the quota {quota} of this tenant or key already has its default")
    await request.host.quotas.read()
    return Response(204)


def _audit_draft(
    request: Request, action: str, tenant: str, key_id: str, quota: str, limit: int | None
) -> AuditDraft:
    principal = request.caller.key_id
    return request.host.audit.draft(
        tenant, principal, action, quota, limit=limit, keyId=key_id or None
    )


def _quota_setting(row: QuotaRow) -> QuotaSetting:
    return QuotaSetting(
        tenant=row.tenant, quota=row.quota, limit=row.amount, key_id=row.key_id or UNSET
    )


OPERATIONS = (
    Operation(
        name="getUsage",
        method="GET",
        path="/v1/usage",
        handler=get_usage,
        summary="Read the usage and quotas of this tenant and this key",
        tag="host",
        scope="runs:read",
        response=UsageReport,
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
        scope=MANAGE_SCOPE,
        response=QuotaList,
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
        scope=MANAGE_SCOPE,
        body=SetQuota,
        response=QuotaSetting,
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
        scope=MANAGE_SCOPE,
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
