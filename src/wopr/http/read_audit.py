"""Audit entries of reads, if `WOPR_AUDIT_READS` is set.

The response is sent only after its audit entry is durable. If the entry cannot be written, the read
is refused.
"""

from __future__ import annotations

import structlog

from wopr.host.host import Host
from wopr.http.operation import Operation, camel_case
from wopr.http.request import MAX_LOGGED_ID_LENGTH, TRANSPORT, Request
from wopr.protocol.documents import Json
from wopr.protocol.errors import WoprError
from wopr.services.audit.trail import AuditBatches

log = structlog.get_logger("wopr.audit")


def create_read_audit(host: Host) -> ReadAudit | None:
    """Create the recorder of reads; None if `WOPR_AUDIT_READS` is off."""
    level = host.settings.audit_reads
    if level == "off":
        return None
    return ReadAudit(AuditBatches(host.audit), records_all=level == "all")


class ReadAudit:
    """Records which key read which resource, without contents and query strings."""

    def __init__(self, batches: AuditBatches, *, records_all: bool) -> None:
        self._batches = batches
        self._records_all = records_all

    async def record(self, request: Request, operation: Operation) -> None:
        """Record a read that was allowed. Raises `Unavailable` when the entry cannot be written."""
        await self._record(request, operation, "allowed")

    async def record_failure(
        self, request: Request, operation: Operation, error: WoprError
    ) -> None:
        """Record a read that failed for another reason than a missing scope."""
        try:
            await self._record(request, operation, "failed", code=error.code)
        except WoprError as record_error:
            # The caller gets no content in any case, so the error is only logged.
            log.error(
                "a failed read is not recorded", code=record_error.code, message=str(record_error)
            )

    async def _record(
        self, request: Request, operation: Operation, outcome: str, **details: Json
    ) -> None:
        caller = request.principal
        if caller is None or not self._is_recorded(operation):
            return
        # A token in a path is a credential.
        named = {
            camel_case(name): value[:MAX_LOGGED_ID_LENGTH]
            for name, value in request.path.items()
            if name != "token"
        }
        resource = named.pop("runId", "") or (named.popitem()[1] if named else operation.path)
        await self._batches.record(
            caller.tenant,
            caller.key_id,
            operation.action or operation.name,
            resource,
            outcome,
            **details,
            **named,
            transport=request.scope.get(TRANSPORT),
        )

    def _is_recorded(self, operation: Operation) -> bool:
        if operation.method != "GET" or operation.read_level == "recorded":
            return False
        return self._records_all or operation.read_level == "sensitive"
