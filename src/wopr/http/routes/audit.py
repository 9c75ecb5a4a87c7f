"""Routes of the audit log: a tenant's entries, and verification of the chain."""

from __future__ import annotations

import msgspec

from wopr.http.operation import PAGING, Operation, Parameter, page_limit
from wopr.http.request import Request, whole_number
from wopr.http.response import Response, ok
from wopr.protocol.documents import UNSET
from wopr.protocol.errors import Refused
from wopr.protocol.resources.audit import AuditAnomaly, AuditCheckpoint, AuditVerifyResult
from wopr.protocol.runs import Page
from wopr.services.audit.verify import AuditReport, verify_audit_log

MAX_VERIFIED_ENTRIES = 100_000


async def list_audit(request: Request) -> Response:
    """List the tenant's entries, newest first."""
    limit = page_limit(request)
    cursor = request.query.get("cursor")
    before = None if cursor is None else whole_number("cursor", cursor)
    rows = await request.host.store.audit_page(request.tenant, before, limit + 1)
    page = rows[:limit]
    return ok(
        Page(
            items=[msgspec.Raw(row.body) for row in page],
            next_cursor=str(page[-1].sequence) if len(rows) > limit else UNSET,
        )
    )


async def verify_audit(request: Request) -> Response:
    """Verify a part of the audit chain."""
    start, end = _sequence_parameter(request, "fromSeq"), _sequence_parameter(request, "toSeq")
    if end < start:
        raise Refused(f"toSeq must be at least fromSeq ({start}), not {end}", field="toSeq")
    store = request.host.store
    if min(end, await store.audit_head()) - start >= MAX_VERIFIED_ENTRIES:
        raise Refused(f"the range may have at most {MAX_VERIFIED_ENTRIES} entries", field="toSeq")
    return ok(
        _result(start, end, await verify_audit_log(store, start, end)),
        200,
        cache_control="no-store",
    )


def _sequence_parameter(request: Request, name: str) -> int:
    raw = request.query.get(name)
    if raw is None:
        raise Refused(f"{name} is required", field=name)
    return whole_number(name, raw)


def _result(start: int, end: int, report: AuditReport) -> AuditVerifyResult:
    return AuditVerifyResult(
        from_seq=start,
        to_seq=end,
        chain_valid=report.is_valid,
        checkpoints_valid=report.has_valid_checkpoints,
        checkpoints=[
            AuditCheckpoint(
                checkpoint=f"checkpoint-{row.at_sequence}",
                at_sequence=row.at_sequence,
                merkle_root=row.merkle_root,
                signature=row.signature,
            )
            for row in report.checkpoints
        ],
        anomalies=[
            AuditAnomaly(
                at_seq=finding.at,
                expected_prev_hash=finding.expected,
                actual_prev_hash=finding.actual,
            )
            for finding in report.findings
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
        response=Page,
        errors=(400, 401, 403),
        parameters=PAGING,
        is_extension=True,
        read_level="sensitive",
    ),
    Operation(
        name="verifyAudit",
        method="GET",
        path="/v1/audit/verify",
        handler=verify_audit,
        summary="Verify a part of the audit chain",
        tag="audit",
        scope="audit:read",
        response=AuditVerifyResult,
        errors=(400, 401, 403),
        parameters=(
            Parameter(
                name="fromSeq",
                description="Sequence of the first entry.",
                schema=_SEQUENCE,
                required=True,
            ),
            Parameter(
                name="toSeq",
                description="Sequence of the last entry.",
                schema=_SEQUENCE,
                required=True,
            ),
        ),
        read_level="sensitive",
    ),
)
