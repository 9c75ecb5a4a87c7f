"""Reads on the audit log, where `WOPR_AUDIT_READS` asks for them.

An answer is sent only after the entry of its read is durable. When the entry cannot be written, the
read is refused.
"""

from __future__ import annotations

import re
from typing import Final

import structlog

from wopr.http.exchange import LONGEST_ID, Exchange
from wopr.http.operation import Operation
from wopr.http.runs import TRANSPORT
from wopr.protocol.documents import Json
from wopr.protocol.errors import WoprError
from wopr.runtime.audit import AuditBatches
from wopr.runtime.host import Host

_UNDERSCORE: Final = re.compile(r"_(\w)")

log = structlog.get_logger("wopr.audit")


def read_audit(host: Host) -> ReadAudit | None:
    """The recorder of reads; None where the operator does not want any."""
    level = host.settings.audit_reads
    if level == "off":
        return None
    return ReadAudit(AuditBatches(host.audit), has_all=level == "all")


class ReadAudit:
    """Records who read what. It keeps no part of the content and no query string."""

    def __init__(self, batches: AuditBatches, *, has_all: bool) -> None:
        self._batches = batches
        self._has_all = has_all

    async def record(self, exchange: Exchange, operation: Operation) -> None:
        """Record a read that was allowed. Raises `Unavailable` when the entry cannot be written."""
        await self._record(exchange, operation, "allowed")

    async def record_failure(
        self, exchange: Exchange, operation: Operation, error: WoprError
    ) -> None:
        """Record a read that failed for another reason than missing rights."""
        try:
            await self._record(exchange, operation, "failed", code=error.code)
        except WoprError as fault:
            # The caller gets no content, with or without an entry.
            log.error("a failed read is not on record", code=fault.code, message=str(fault))

    async def _record(
        self, exchange: Exchange, operation: Operation, outcome: str, **facts: Json
    ) -> None:
        caller = exchange.principal
        if caller is None or not self._covers(operation):
            return
        # A token in a path is a credential.
        named = {
            _camel(name): value[:LONGEST_ID]
            for name, value in exchange.path.items()
            if name != "token"
        }
        resource = named.pop("runId", "") or (named.popitem()[1] if named else operation.path)
        await self._batches.record(
            caller.tenant,
            caller.key_id,
            operation.action or operation.name,
            resource,
            outcome,
            **facts,
            **named,
            transport=exchange.scope.get(TRANSPORT),
        )

    def _covers(self, operation: Operation) -> bool:
        if operation.method != "GET" or operation.read == "recorded":
            return False
        return self._has_all or operation.read == "sensitive"


def _camel(name: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)
