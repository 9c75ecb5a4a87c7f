"""What the runtime tells the audit trail; how entries are chained and kept is the trail's business."""

from __future__ import annotations

from typing import Protocol

from wopr.protocol.documents import Json


class AuditTrail(Protocol):
    """Keeps who did what to what, and how that was decided. Never content."""

    async def record(
        self,
        tenant: str,
        principal: str,
        action: str,
        resource: str,
        outcome: str = "allowed",
        **facts: Json,
    ) -> None:
        """Append one entry durably."""
        ...
