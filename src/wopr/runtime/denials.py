"""Refusals on the audit trail: each caller's first few in a minute, and how many there were besides."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from wopr.protocol.documents import Json
from wopr.protocol.errors import WoprError
from wopr.runtime.audit_port import AuditTrail

WINDOW_MS: Final = 60_000
MOST_IN_WINDOW: Final = 20
CALLERS_KEPT: Final = 10_000

log = structlog.get_logger("wopr.audit")


@dataclass(slots=True)
class _Window:
    """A caller's refusals in the present minute, and those that were left out before."""

    number: int
    count: int = 0
    left_out: int = 0


class Denials:
    """Records refusals without letting whoever is refused fill the disk."""

    def __init__(self, audit: AuditTrail, now: Callable[[], int]) -> None:
        self._audit = audit
        self._now = now
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()

    async def record(
        self, tenant: str, principal: str, action: str, resource: str, **facts: Json
    ) -> None:
        """Put a refusal on record, unless this caller has had enough of them this minute."""
        window = self._window((tenant, principal))
        window.count += 1
        if window.count > MOST_IN_WINDOW:
            window.left_out += 1
            return
        left_out, window.left_out = window.left_out, 0
        facts |= {"leftOutBefore": left_out} if left_out else {}
        try:
            await self._audit.record(tenant, principal, action, resource, "denied", **facts)
        except WoprError as error:
            # The refusal itself stands, whether or not it could be written down.
            log.error("a refusal is not on record", code=error.code, message=str(error))

    def _window(self, caller: tuple[str, str]) -> _Window:
        number = self._now() // WINDOW_MS
        window = self._windows.setdefault(caller, _Window(number))
        if window.number != number:
            window.number, window.count = number, 0
        self._windows.move_to_end(caller)
        while len(self._windows) > CALLERS_KEPT:
            self._windows.popitem(last=False)
        return window
