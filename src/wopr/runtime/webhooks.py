"""The dispatcher: takes queued events to their receivers, in each run's own order.

Each webhook with queued events has one worker, and each tenant has a share of the requests that are
under way, so a receiver that hangs delays no other tenant. What is queued lies in the store: a host that stops or is killed goes on
where it was, and may then repeat the few events whose taking it could not note down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.abc
import structlog

from wopr.protocol.errors import WoprError
from wopr.runtime.breaker import DeliveryPolicy, after_failure, after_success
from wopr.runtime.courier import Courier
from wopr.runtime.metrics import Metrics
from wopr.runtime.shares import Shares
from wopr.runtime.subscriptions import Subscription, Subscriptions
from wopr.store.port.webhooks import DeadLetter, Delivery, Lane, Outbox, Settlement

# Runs whose events are sent to one receiver at the same time.
LANES_AT_ONCE: Final = 8
# Events of a lane between two notes of how far it has come.
DELIVERED_AT_ONCE: Final = 32
NOTED_AFTER_MS: Final = 500
# How often the store is asked for what nobody in this process has heard of.
SWEEP_SECONDS: Final = 30.0
LONGEST_SLEEP_SECONDS: Final = 60.0
STORE_AWAY_SECONDS: Final = 1.0

log = structlog.get_logger("wopr.webhooks")


@dataclass(slots=True)
class _Turn:
    """What has come of a lane's turn so far."""

    delivered: list[int]
    failed: Delivery | None = None
    reason: str = ""


class Dispatcher:
    """Delivers, retries, and gives up."""

    def __init__(
        self,
        outbox: Outbox,
        subscriptions: Subscriptions,
        courier: Courier,
        *,
        policy: DeliveryPolicy,
        deliveries_each: int,
        metrics: Metrics,
        now: Callable[[], int],
    ) -> None:
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._courier = courier
        self._policy = policy
        self._metrics = metrics
        self._now = now
        self._tasks: anyio.abc.TaskGroup | None = None
        self._news: dict[tuple[str, str], anyio.Event] = {}
        self._deliveries = Shares(deliveries_each)
        subscriptions.has_news = self.wake

    async def run_forever(self) -> None:
        """Deliver until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await self._catch_up()
                while True:
                    await self._employ_all()
                    await anyio.sleep(SWEEP_SECONDS)
            finally:
                self._tasks = None

    async def _catch_up(self) -> None:
        """Take over how receivers fared with whoever delivered before."""
        try:
            await self._subscriptions.load(keeps_health=False)
        except WoprError as error:
            log.error("webhooks wait for the store", code=error.code, message=str(error))

    async def _employ_all(self) -> None:
        try:
            for tenant, webhook_id in await self._outbox.undelivered():
                self._employ(tenant, webhook_id)
        except WoprError as error:
            log.error("webhooks wait for the store", code=error.code, message=str(error))

    def wake(self, tenant: str, webhook_id: str) -> None:
        """Hear that a webhook has something to be told, or has changed."""
        news = self._news.get((tenant, webhook_id))
        if news is not None:
            news.set()
        else:
            self._employ(tenant, webhook_id)

    def _employ(self, tenant: str, webhook_id: str) -> None:
        if self._tasks is not None and (tenant, webhook_id) not in self._news:
            self._news[tenant, webhook_id] = anyio.Event()
            self._tasks.start_soon(self._serve, tenant, webhook_id)

    async def _serve(self, tenant: str, webhook_id: str) -> None:
        """Tell one webhook everything, and leave when all is said."""
        try:
            while True:
                self._news[tenant, webhook_id] = anyio.Event()
                subscription = self._subscriptions.find(tenant, webhook_id)
                if subscription is None or subscription.health.state == "failed":
                    return
                try:
                    pause = await self._work(subscription)
                except Exception as error:  # the outer edge of a task
                    log.error("delivery waits", webhook_id=webhook_id, exc_info=error)
                    pause = STORE_AWAY_SECONDS
                if pause is None and not self._news[tenant, webhook_id].is_set():
                    return
                with anyio.move_on_after(min(pause or 0.0, LONGEST_SLEEP_SECONDS)):
                    await self._news[tenant, webhook_id].wait()
        finally:
            del self._news[tenant, webhook_id]

    async def _work(self, subscription: Subscription) -> float | None:
        """Give every lane that is due its turn; answer how long to wait, None when all is said."""
        tenant, webhook_id = subscription.tenant, subscription.row.webhook_id
        is_trial = subscription.health.state == "open"
        now = self._now()
        until = subscription.health.open_until or 0
        if is_trial and now < until:
            return (until - now) / 1000
        most = 1 if is_trial else LANES_AT_ONCE
        lanes = await self._outbox.due_lanes(tenant, webhook_id, now, most)
        if lanes:
            async with anyio.create_task_group() as turns:
                for lane in lanes:
                    turns.start_soon(self._take_turn, subscription, lane, is_trial)
            return 0.0
        due = await self._outbox.next_lane_due(tenant, webhook_id)
        return None if due is None else max(due - now, 1) / 1000

    async def _take_turn(self, subscription: Subscription, lane: Lane, is_trial: bool) -> None:
        """Deliver the first events of a lane, in order, up to the first that is not taken."""
        tenant, webhook_id = subscription.tenant, subscription.row.webhook_id
        most = 1 if is_trial else DELIVERED_AT_ONCE
        turn = _Turn([])
        began = self._now()
        try:
            for delivery in await self._outbox.deliveries(tenant, webhook_id, lane.run_id, most):
                if not await self._deliver(tenant, webhook_id, delivery, turn):
                    break
                if self._now() - began > NOTED_AFTER_MS:
                    break
        finally:
            # Also when the host stops: what was taken need not be sent again.
            with anyio.CancelScope(shield=True):
                await self._settle(tenant, webhook_id, lane, turn)

    async def _deliver(self, tenant: str, webhook_id: str, delivery: Delivery, turn: _Turn) -> bool:
        # Looked up each time: it may have been removed, or its secret rotated.
        subscription = self._subscriptions.find(tenant, webhook_id)
        if subscription is None:
            return False
        # The wait is not part of the receiver's time to answer.
        async with self._deliveries.place(tenant):
            reason = await self._courier.deliver(subscription, delivery, self._now())
        self._metrics.delivered(reason is None)
        if reason is None:
            turn.delivered.append(delivery.sequence)
            return True
        turn.failed, turn.reason = delivery, reason
        return False

    async def _settle(self, tenant: str, webhook_id: str, lane: Lane, turn: _Turn) -> None:
        subscription = self._subscriptions.find(tenant, webhook_id)
        if subscription is None or (not turn.delivered and turn.failed is None):
            return
        now = self._now()
        health = subscription.health
        if turn.delivered:
            health = after_success(health)
        attempts, dead = 0, None
        if turn.failed is not None:
            health = after_failure(health, now, self._policy)
            attempts = 1 + (0 if turn.delivered else lane.attempts)
            dead = self._given_up(lane, turn.failed, attempts, turn.reason, now)
            log.warning(
                "webhook not delivered",
                webhook_id=webhook_id,
                run_id=lane.run_id,
                sequence=turn.failed.sequence,
                attempt=attempts,
                reason=turn.reason,
                state=health.state,
            )
        subscription.health = health
        is_retry = turn.failed is not None and dead is None
        await self._outbox.settle_deliveries(
            tenant,
            Settlement(
                webhook_id=webhook_id,
                run_id=lane.run_id,
                health=health,
                now=now,
                due_at=now + self._policy.backoff_ms(attempts) if is_retry else now,
                attempts=attempts if is_retry else 0,
                delivered=tuple(turn.delivered),
                dead=dead,
            ),
        )

    def _given_up(
        self, lane: Lane, delivery: Delivery, attempts: int, reason: str, now: int
    ) -> DeadLetter | None:
        """What is given up after the last attempt; None while there are more."""
        if attempts < self._policy.attempts:
            return None
        return DeadLetter(
            run_id=lane.run_id,
            sequence=delivery.sequence,
            type=delivery.type,
            attempts=attempts,
            reason=reason,
            died_at=now,
        )
