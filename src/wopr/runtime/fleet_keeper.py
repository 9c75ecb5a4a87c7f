"""The task that keeps the fleet in order: windows move on, and old runs go."""

from __future__ import annotations

from typing import Final

import anyio
import structlog

from wopr.fleet.keeping import Keeping
from wopr.protocol.errors import WoprError
from wopr.runtime.audit import HOST, Audit

# The nearer the totals are to the clock, the less a reader has to make up for.
KEEPING_SECONDS: Final = 60.0

log = structlog.get_logger("wopr.fleet")


class Keeper:
    """Keeps the fleet in order for as long as the host runs."""

    def __init__(self, keeping: Keeping, audit: Audit) -> None:
        self._keeping = keeping
        self._audit = audit

    async def run_forever(self) -> None:
        """Keep it once a minute until cancelled."""
        while True:
            try:
                await self.keep()
            except WoprError as error:
                log.error("the fleet was not kept", code=error.code, message=str(error))
            await anyio.sleep(KEEPING_SECONDS)

    async def keep(self) -> None:
        """Do now what is to be done."""
        await self._keeping.settle()
        hidden, deleted = await self._keeping.retain()
        for action, count in (("retention.hide", hidden), ("retention.delete", deleted)):
            if count:
                await self._audit.record(HOST, "host", action, "fleet runs", count=count)
