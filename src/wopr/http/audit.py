"""The audit log: a tenant's own entries, and proof that the whole of it holds."""

from __future__ import annotations

import msgspec

from wopr.http.answers import Answer, ok
from wopr.http.exchange import Exchange, whole_number
from wopr.http.operation import Operation, Parameter
from wopr.http.paging import PAGE_DEFAULT, PAGE_MOST, PAGING
from wopr.protocol.audit import AuditAnomaly, AuditCheckpoint, AuditVerifyResult
from wopr.protocol.documents import UNSET
from wopr.protocol.errors import Refused
from wopr.protocol.runs import Page
from wopr.runtime.audit_verifying import Verdict, verify

LONGEST_WALK = 100_000


async def list_audit(exchange: Exchange) -> Answer:
    """List the tenant's entries, newest first."""
    limit = exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)
    cursor = exchange.query.get("cursor")
    before = None if cursor is None else whole_number("cursor", cursor)
    rows = await exchange.host.store.audit_page(exchange.tenant, before, limit + 1)
    page = rows[:limit]
    return ok(
        Page(
            items=[msgspec.Raw(row.body) for row in page],
            next_cursor=str(page[-1].sequence) if len(rows) > limit else UNSET,
        )
    )


async def verify_audit(exchange: Exchange) -> Answer:
    """Walk a part of the chain, and say whether it holds."""
    start, end = _bound(exchange, "fromSeq"), _bound(exchange, "toSeq")
    if end < start:
        raise Refused("toSeq must not be below fromSeq", field="toSeq")
    store = exchange.host.store
    if min(end, await store.audit_head()) - start >= LONGEST_WALK:
        raise Refused(f"ask for {LONGEST_WALK} entries at most at once", field="toSeq")
    return ok(_result(start, end, await verify(store, start, end)), 200, cache_control="no-store")


def _bound(exchange: Exchange, name: str) -> int:
    raw = exchange.query.get(name)
    if raw is None:
        raise Refused(f"{name} is required", field=name)
    return whole_number(name, raw)


def _result(start: int, end: int, verdict: Verdict) -> AuditVerifyResult:
    return AuditVerifyResult(
        from_seq=start,
        to_seq=end,
        chain_valid=verdict.is_valid,
        checkpoints_valid=verdict.has_valid_checkpoints,
        checkpoints=[
            AuditCheckpoint(
                checkpoint=f"checkpoint-{row.at_sequence}",
                at_sequence=row.at_sequence,
                merkle_root=row.merkle_root,
                signature=row.signature,
            )
            for row in verdict.checkpoints
        ],
        anomalies=[
            AuditAnomaly(
                at_seq=finding.at,
                expected_prev_hash=finding.expected,
                actual_prev_hash=finding.actual,
            )
            for finding in verdict.findings
            if finding.kind == "entry"
        ],
    )


_SEQUENCE = {"type": "integer", "minimum": 0}

OPERATIONS = (
    Operation(
        name="listAudit",
        method="GET",
        path="/v1/audit",
        handler=list_audit,
        summary="List the tenant's audit entries",
        tag="audit",
        scope="audit:read",
        answer=Page,
        errors=(400, 401, 403),
        parameters=PAGING,
        is_extension=True,
        read="sensitive",
    ),
    Operation(
        name="verifyAudit",
        method="GET",
        path="/v1/audit/verify",
        handler=verify_audit,
        summary="Verify a part of the audit chain",
        tag="audit",
        scope="audit:read",
        answer=AuditVerifyResult,
        errors=(400, 401, 403),
        parameters=(
            Parameter(
                name="fromSeq",
                description="The first entry to look at.",
                schema=_SEQUENCE,
                required=True,
            ),
            Parameter(
                name="toSeq",
                description="The last entry to look at.",
                schema=_SEQUENCE,
                required=True,
            ),
        ),
        read="sensitive",
    ),
)
