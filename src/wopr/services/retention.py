"""Retention: deletes expired runs, idempotency records and memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wopr.process.background import BackgroundTask
from wopr.process.settings import DAY_MS
from wopr.services.audit.trail import HOST, Audit
from wopr.store.port import Store

PERIOD_SECONDS: Final = 3600
# Runs that are deleted in one transaction.
DELETED_AT_ONCE: Final = 500
# How long responses to requests with an idempotency key are stored, and outcomes of calls that
# nodes made under an invocation id.
RESPONSES_KEPT_SECONDS: Final = 86_400
INVOCATIONS_KEPT_SECONDS: Final = 1_209_600


class Retention:
    """Deletes expired data once an hour."""

    def __init__(
        self, store: Store, audit: Audit, now: Callable[[], int], *, retention_days: int
    ) -> None:
        self._store = store
        self._audit = audit
        self._now = now
        self._keep_ms = retention_days * DAY_MS
        self.task = BackgroundTask("retention", self._delete_expired, period=PERIOD_SECONDS)

    async def _delete_expired(self) -> None:
        now = self._now()
        while removed := await self._store.delete_expired_runs(
            now - self._keep_ms, DELETED_AT_ONCE
        ):
            await self._audit.record(HOST, "host", "retention.delete", "runs", count=removed)
        await self._store.delete_idempotency_records(
            now - RESPONSES_KEPT_SECONDS * 1000, now - INVOCATIONS_KEPT_SECONDS * 1000
        )
        await self._store.delete_expired_memories(now)
        await self._store.correct_counters()
