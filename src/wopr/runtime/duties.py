"""What one process does for all: retention, webhooks, audit checkpoints, judges and the fleet."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio
import structlog

from wopr.protocol.errors import WoprError
from wopr.runtime.advertise import ANSWERS_KEPT_SECONDS, INVOCATIONS_KEPT_SECONDS
from wopr.runtime.audit import HOST
from wopr.runtime.settings import DAY_MS

if TYPE_CHECKING:
    from wopr.runtime.host import Host

Duty: TypeAlias = Callable[[], Coroutine[None, None, None]]

HOUSEKEEPING_SECONDS = 3600
EXPIRED_AT_ONCE = 500

log = structlog.get_logger("wopr.host")


def duties_of(host: Host) -> tuple[Duty, ...]:
    """Tasks that go on until they are cancelled; where processes share a store, one has them."""
    sink = () if host.audit_sink is None else (host.audit_sink.run_forever,)
    return (
        *sink,
        partial(_keep_house, host),
        host.dispatcher.run_forever,
        host.audit.keep_checkpoints,
        host.feedback.judge_work.run_forever,
        host.fleet.telling.run_forever,
        host.fleet.showing.run_forever,
        host.fleet.keeper.run_forever,
        host.fleet.traces.run_forever,
    )


async def _keep_house(host: Host) -> None:
    """Retention: drop what is past its time, in small bites."""
    while True:
        now = host.sources.now()
        try:
            keep_ms = host.settings.retention_days * DAY_MS
            while removed := await host.store.expire(now - keep_ms, EXPIRED_AT_ONCE):
                await host.audit.record(HOST, "host", "retention.delete", "runs", count=removed)
            await host.store.forget(
                now - ANSWERS_KEPT_SECONDS * 1000, now - INVOCATIONS_KEPT_SECONDS * 1000
            )
            await host.store.forget_memories(now)
            await host.store.correct_counters()
        except WoprError as error:
            log.error("housekeeping failed", code=error.code, message=str(error))
        await anyio.sleep(HOUSEKEEPING_SECONDS)
