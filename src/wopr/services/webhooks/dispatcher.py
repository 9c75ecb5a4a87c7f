"""The dispatcher: delivers queued events to webhooks, in the order of each run.

Each webhook with queued events has one worker, and each tenant has slots for requests in progress,
so that a receiver that hangs does not delay other tenants. The queue is in the store. After a crash
the dispatcher continues where it was, and may repeat events whose delivery was not yet recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.abc
import structlog

from wopr.process.background import BackgroundTask
from wopr.process.metrics import Metrics
from wopr.process.tenant_slots import TenantSlots
from wopr.services.webhooks.delivery import (
    DeliveryPolicy,
    WebhookClient,
    after_failure,
    after_success,
)
from wopr.services.webhooks.subscriptions import Subscription, Subscriptions
from wopr.store.port.webhooks import DeadLetter, Delivery, DeliveryQueue, DeliveryResult, Outbox

# Runs whose events are sent to one webhook at the same time.
RUNS_AT_ONCE: Final = 8
# Events of a run, or the time, after which the progress of its deliveries is recorded.
DELIVERED_AT_ONCE: Final = 32
RECORDED_AFTER_MS: Final = 500
# How often the store is queried for deliveries that this process was not notified of.
SWEEP_SECONDS: Final = 30.0
MAX_SLEEP_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0

log = structlog.get_logger("wopr.webhooks")


@dataclass(slots=True)
class _Progress:
    """The deliveries of one run in one round of its worker."""

    delivered: list[int]
    failed: Delivery | None = None
    reason: str = ""


class Dispatcher:
    """Delivers queued events and retries them. After the last attempt an event is a dead letter."""

    def __init__(
        self,
        outbox: Outbox,
        subscriptions: Subscriptions,
        client: WebhookClient,
        *,
        policy: DeliveryPolicy,
        deliveries_per_tenant: int,
        metrics: Metrics,
        now: Callable[[], int],
    ) -> None:
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._client = client
        self._policy = policy
        self._metrics = metrics
        self._now = now
        self._tasks: anyio.abc.TaskGroup | None = None
        self._has_health = False
        # A worker for each webhook, woken by its event.
        self._workers: dict[tuple[str, str], anyio.Event] = {}
        self._deliveries = TenantSlots(deliveries_per_tenant)

    async def run(self) -> None:
        """Deliver until cancelled."""
        sweep = BackgroundTask("webhook sweep", self._sweep, period=SWEEP_SECONDS)
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._has_health = False
            try:
                tasks.start_soon(sweep.run)
                while True:
                    for webhook in await self._subscriptions.changes.take():
                        self.wake(*webhook)
            finally:
                self._tasks = None

    async def _sweep(self) -> None:
        """Start a worker for every webhook with queued events."""
        if not self._has_health:
            # Another process may have delivered before, so load its counts of failures.
            await self._subscriptions.load(keeps_health=False)
            self._has_health = True
        for tenant, webhook_id in await self._outbox.webhooks_with_deliveries():
            self._start_worker(tenant, webhook_id)

    def wake(self, tenant: str, webhook_id: str) -> None:
        """Deliver to a webhook that has new events or was changed."""
        worker = self._workers.get((tenant, webhook_id))
        if worker is not None:
            worker.set()
        else:
            self._start_worker(tenant, webhook_id)

    def _start_worker(self, tenant: str, webhook_id: str) -> None:
        if self._tasks is not None and (tenant, webhook_id) not in self._workers:
            self._workers[tenant, webhook_id] = anyio.Event()
            self._tasks.start_soon(self._work, tenant, webhook_id)

    async def _work(self, tenant: str, webhook_id: str) -> None:
        """Deliver to one webhook until its queue is empty."""
        try:
            while True:
                self._workers[tenant, webhook_id] = anyio.Event()
                subscription = self._subscriptions.find(tenant, webhook_id)
                if subscription is None or subscription.health.state == "failed":
                    return
                try:
                    pause = await self._deliver_due(subscription)
                except Exception as error:  # the outer edge of a task
                    log.error("delivery failed", webhook_id=webhook_id, exc_info=error)
                    pause = RETRY_SECONDS
                if pause is None and not self._workers[tenant, webhook_id].is_set():
                    return
                with anyio.move_on_after(min(pause or 0.0, MAX_SLEEP_SECONDS)):
                    await self._workers[tenant, webhook_id].wait()
        finally:
            del self._workers[tenant, webhook_id]

    async def _deliver_due(self, subscription: Subscription) -> float | None:
        """Deliver events of the runs that are due.

        Returns the seconds until the next attempt, or None when the queue is empty.
        """
        tenant, webhook_id = subscription.tenant, subscription.row.webhook_id
        is_trial = subscription.health.state == "open"
        now = self._now()
        until = subscription.health.open_until or 0
        if is_trial and now < until:
            return (until - now) / 1000
        limit = 1 if is_trial else RUNS_AT_ONCE
        queues = await self._outbox.due_queues(tenant, webhook_id, now, limit)
        if queues:
            async with anyio.create_task_group() as tasks:
                for queue in queues:
                    tasks.start_soon(self._deliver_run, subscription, queue, is_trial)
            return 0.0
        due = await self._outbox.next_queue_due(tenant, webhook_id)
        return None if due is None else max(due - now, 1) / 1000

    async def _deliver_run(
        self, subscription: Subscription, queue: DeliveryQueue, is_trial: bool
    ) -> None:
        """Deliver the first events of a run, in order, up to the first failure."""
        tenant, webhook_id = subscription.tenant, subscription.row.webhook_id
        limit = 1 if is_trial else DELIVERED_AT_ONCE
        progress = _Progress([])
        began = self._now()
        try:
            for delivery in await self._outbox.deliveries(tenant, webhook_id, queue.run_id, limit):
                if not await self._deliver(tenant, webhook_id, delivery, progress):
                    break
                if self._now() - began > RECORDED_AFTER_MS:
                    break
        finally:
            # Also if the host stops, so that delivered events are not sent again.
            with anyio.CancelScope(shield=True):
                await self._record(tenant, webhook_id, queue, progress)

    async def _deliver(
        self, tenant: str, webhook_id: str, delivery: Delivery, progress: _Progress
    ) -> bool:
        # Looked up each time, because it may have been deleted, or its secret rotated.
        subscription = self._subscriptions.find(tenant, webhook_id)
        if subscription is None:
            return False
        # The wait for a slot is not part of the timeout.
        async with self._deliveries.slot(tenant):
            reason = await self._client.deliver(subscription, delivery, self._now())
        self._metrics.count_delivery(reason is None)
        if reason is None:
            progress.delivered.append(delivery.sequence)
            return True
        progress.failed, progress.reason = delivery, reason
        return False

    async def _record(
        self, tenant: str, webhook_id: str, queue: DeliveryQueue, progress: _Progress
    ) -> None:
        subscription = self._subscriptions.find(tenant, webhook_id)
        if subscription is None or (not progress.delivered and progress.failed is None):
            return
        now = self._now()
        health = subscription.health
        if progress.delivered:
            health = after_success(health)
        attempts, dead = 0, None
        if progress.failed is not None:
            health = after_failure(health, now, self._policy)
            attempts = 1 + (0 if progress.delivered else queue.attempts)
            dead = self._dead_letter(queue, progress.failed, attempts, progress.reason, now)
            log.warning(
                "webhook delivery failed",
                webhook_id=webhook_id,
                run_id=queue.run_id,
                sequence=progress.failed.sequence,
                attempt=attempts,
                reason=progress.reason,
                state=health.state,
            )
        subscription.health = health
        is_retry = progress.failed is not None and dead is None
        await self._outbox.settle_deliveries(
            tenant,
            DeliveryResult(
                webhook_id=webhook_id,
                run_id=queue.run_id,
                health=health,
                now=now,
                due_at=now + self._policy.backoff_ms(attempts) if is_retry else now,
                attempts=attempts if is_retry else 0,
                delivered=tuple(progress.delivered),
                dead=dead,
            ),
        )

    def _dead_letter(
        self, queue: DeliveryQueue, delivery: Delivery, attempts: int, reason: str, now: int
    ) -> DeadLetter | None:
        """Return the dead letter after the last attempt; None before."""
        if attempts < self._policy.attempts:
            return None
        return DeadLetter(
            run_id=queue.run_id,
            sequence=delivery.sequence,
            type=delivery.type,
            attempts=attempts,
            reason=reason,
            died_at=now,
        )
