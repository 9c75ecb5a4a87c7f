from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.rows import OTHER, T0, TENANT, answer, batch, ended, events, run
from wopr.protocol.errors import Conflict
from wopr.store.port import Batch, Store
from wopr.store.port.webhooks import (
    DeadLetter,
    DeliveryQueue,
    DeliveryResult,
    NewDeliveries,
    Rotation,
    WebhookHealth,
    WebhookRow,
)

pytestmark = pytest.mark.anyio


def webhook(webhook_id: str = "wh-1", at: int = T0, **changes: object) -> WebhookRow:
    fields: dict[str, object] = {
        "url": "https://hooks.example.com/",
        "events": ("run.*",),
        "secret": b"sealed",
        "fingerprint": "abcd1234",
    }
    return WebhookRow(webhook_id=webhook_id, created_at=at, **{**fields, **changes})  # type: ignore[arg-type]  # tests name the fields they change


def batch_with_deliveries(
    run_id: str = "run-1",
    first: int = 0,
    count: int = 3,
    *,
    to: Sequence[str] = ("wh-1",),
    sequences: Sequence[int] | None = None,
    at: int = T0,
) -> Batch:
    """Return a batch whose events are delivered to webhooks."""
    delivered = tuple(range(first, first + count)) if sequences is None else tuple(sequences)
    return Batch(
        run=run(run_id, first + count - 1, updated_at=at),
        first=first,
        events=events(first, count),
        deliveries=tuple(NewDeliveries(webhook_id=name, sequences=delivered) for name in to),
    )


def settlement(run_id: str = "run-1", **changes: object) -> DeliveryResult:
    fields: dict[str, object] = {
        "webhook_id": "wh-1",
        "health": WebhookHealth(),
        "now": T0,
        "due_at": T0,
    }
    return DeliveryResult(run_id=run_id, **{**fields, **changes})  # type: ignore[arg-type]  # see webhook()


def letter(run_id: str = "run-1", sequence: int = 0, at: int = T0) -> DeadLetter:
    return DeadLetter(
        run_id=run_id,
        sequence=sequence,
        type="node.completed",
        attempts=3,
        reason="the receiver answered 500",
        died_at=at,
    )


async def queued(store: Store, run_id: str = "run-1", webhook_id: str = "wh-1") -> list[int]:
    return [d.sequence for d in await store.deliveries(TENANT, webhook_id, run_id, 100)]


async def lanes(store: Store, now: int = T0, webhook_id: str = "wh-1") -> list[DeliveryQueue]:
    return await store.due_queues(TENANT, webhook_id, now, 100)


@pytest.fixture
async def store_with_deliveries(store: Store) -> Store:
    """Return a store in which one webhook has three pending events of one run."""
    await store.put_webhook(TENANT, webhook())
    await store.append(TENANT, [batch_with_deliveries()])
    return store


# Subscriptions


async def test_a_subscription_is_stored_unchanged(store: Store) -> None:
    row = webhook(tags=("red", "blue"), events=("run.*", "node.failed"))

    await store.put_webhook(TENANT, row)

    assert await store.webhook(TENANT, "wh-1") == row
    assert await store.webhook_ids(None, 10) == [(TENANT, "wh-1")]


async def test_another_tenant_s_subscription_can_be_neither_read_nor_changed(
    store_with_deliveries: Store,
) -> None:
    rotation = Rotation(secret=b"new", fingerprint="ffff0000", old_secret_until=T0)

    assert await store_with_deliveries.webhook(OTHER, "wh-1") is None
    assert await store_with_deliveries.webhooks(OTHER, None, 10) == []
    assert not await store_with_deliveries.rotate_webhook(OTHER, "wh-1", rotation)
    assert not await store_with_deliveries.delete_webhook(OTHER, "wh-1")
    assert await store_with_deliveries.due_queues(OTHER, "wh-1", T0, 10) == []
    assert await store_with_deliveries.next_queue_due(OTHER, "wh-1") is None
    assert await store_with_deliveries.deliveries(OTHER, "wh-1", "run-1", 10) == []
    assert await store_with_deliveries.redeliver(OTHER, "wh-1", T0, 10) == 0
    await store_with_deliveries.settle_deliveries(OTHER, settlement(delivered=(0, 1, 2)))
    assert await store_with_deliveries.webhook(TENANT, "wh-1") == webhook()
    assert await queued(store_with_deliveries) == [0, 1, 2]


async def test_subscriptions_are_listed_newest_first_in_pages(store: Store) -> None:
    for number in range(5):
        await store.put_webhook(TENANT, webhook(f"wh-{number}", T0 + number // 2))

    first = await store.webhooks(TENANT, None, 3)
    last = first[-1]
    second = await store.webhooks(TENANT, (last.created_at, last.webhook_id), 3)

    names = [row.webhook_id for row in [*first, *second]]
    assert names == ["wh-4", "wh-3", "wh-2", "wh-1", "wh-0"]


async def test_tenants_and_ids_of_all_subscriptions_are_listed_in_pages(store: Store) -> None:
    for tenant, name in ((TENANT, "wh-1"), (OTHER, "wh-2"), (TENANT, "wh-3")):
        await store.put_webhook(tenant, webhook(name))

    first = await store.webhook_ids(None, 2)
    second = await store.webhook_ids(first[-1][1], 2)

    assert [*first, *second] == [(TENANT, "wh-1"), (OTHER, "wh-2"), (TENANT, "wh-3")]


async def test_a_subscription_is_stored_with_the_response_to_its_request(store: Store) -> None:
    await store.put_webhook(TENANT, webhook(), answer())

    with pytest.raises(Conflict) as taken:
        await store.put_webhook(TENANT, webhook("wh-2"), answer())

    assert taken.value.code == "idempotency_in_flight"
    assert await store.idempotency_record(TENANT, b"k") == answer()
    assert await store.webhook(TENANT, "wh-2") is None


async def test_a_rotation_keeps_the_old_secret_for_a_period(store: Store) -> None:
    await store.put_webhook(TENANT, webhook())
    rotation = Rotation(secret=b"new", fingerprint="ffff0000", old_secret_until=T0 + 5)

    assert await store.rotate_webhook(TENANT, "wh-1", rotation, answer())

    assert await store.webhook(TENANT, "wh-1") == webhook(
        secret=b"new", fingerprint="ffff0000", old_secret=b"sealed", old_secret_until=T0 + 5
    )
    assert await store.idempotency_record(TENANT, b"k") == answer()
    assert not await store.rotate_webhook(TENANT, "wh-9", rotation)


async def test_deleting_a_subscription_deletes_its_deliveries(store_with_deliveries: Store) -> None:
    await store_with_deliveries.settle_deliveries(TENANT, settlement(dead=letter()))

    assert await store_with_deliveries.delete_webhook(TENANT, "wh-1")

    assert await store_with_deliveries.webhook(TENANT, "wh-1") is None
    assert await queued(store_with_deliveries) == []
    assert await store_with_deliveries.webhooks_with_deliveries() == []
    assert (await store_with_deliveries.dead_letters(TENANT, "wh-1", None, 10)).letters == ()
    assert not await store_with_deliveries.delete_webhook(TENANT, "wh-1")


# The queue


async def test_events_are_queued_with_the_append_that_writes_them(
    store_with_deliveries: Store,
) -> None:
    assert await store_with_deliveries.webhooks_with_deliveries() == [(TENANT, "wh-1")]
    assert await lanes(store_with_deliveries) == [DeliveryQueue(run_id="run-1", attempts=0)]
    found = await store_with_deliveries.deliveries(TENANT, "wh-1", "run-1", 2)
    assert [(d.sequence, d.type, d.body) for d in found] == [
        (0, "node.completed", b"0"),
        (1, "node.completed", b"1"),
    ]


async def test_a_failed_append_queues_nothing(store_with_deliveries: Store) -> None:
    with pytest.raises(Conflict):
        await store_with_deliveries.append(
            TENANT, [batch_with_deliveries("run-2"), batch_with_deliveries(first=0)]
        )

    assert await queued(store_with_deliveries, "run-2") == []


async def test_only_the_subscribed_events_are_queued(store: Store) -> None:
    await store.put_webhook(TENANT, webhook())

    await store.append(TENANT, [batch_with_deliveries(sequences=(0, 2))])

    assert await queued(store) == [0, 2]


@pytest.mark.parametrize("name", ["wh-gone", "wh-theirs", "wh-failed"])
async def test_a_deleted_failed_or_foreign_subscription_gets_no_deliveries(
    store: Store, name: str
) -> None:
    await store.put_webhook(OTHER, webhook("wh-theirs"))
    await store.put_webhook(TENANT, webhook("wh-failed"))
    failed = settlement(webhook_id="wh-failed", health=WebhookHealth(state="failed"))
    await store.settle_deliveries(TENANT, failed)

    await store.append(TENANT, [batch_with_deliveries(to=(name,))])

    assert await store.webhooks_with_deliveries() == []
    assert await queued(store, webhook_id=name) == []


async def test_a_delivery_queue_is_due_from_the_time_of_its_events(store: Store) -> None:
    await store.put_webhook(TENANT, webhook())
    await store.append(
        TENANT,
        [batch_with_deliveries("late", at=T0 + 5), batch_with_deliveries("early", at=T0 + 1)],
    )

    assert await lanes(store, T0) == []
    assert [lane.run_id for lane in await lanes(store, T0 + 1)] == ["early"]
    assert [lane.run_id for lane in await lanes(store, T0 + 5)] == ["early", "late"]
    assert await store.next_queue_due(TENANT, "wh-1") == T0 + 1


# Results of deliveries


async def test_delivered_events_are_removed_from_the_queue(store_with_deliveries: Store) -> None:
    await store_with_deliveries.settle_deliveries(TENANT, settlement(delivered=(0, 1)))
    left = await queued(store_with_deliveries)
    await store_with_deliveries.settle_deliveries(TENANT, settlement(delivered=(2,)))

    assert left == [2]
    assert await store_with_deliveries.next_queue_due(TENANT, "wh-1") is None
    assert await store_with_deliveries.webhooks_with_deliveries() == []


async def test_a_failed_first_event_delays_all_that_follow(store_with_deliveries: Store) -> None:
    await store_with_deliveries.settle_deliveries(
        TENANT, settlement(delivered=(0,), due_at=T0 + 9, attempts=1)
    )
    await store_with_deliveries.append(TENANT, [batch_with_deliveries(first=3, count=1)])

    assert await lanes(store_with_deliveries, T0 + 8) == []
    assert await lanes(store_with_deliveries, T0 + 9) == [DeliveryQueue(run_id="run-1", attempts=1)]
    assert await queued(store_with_deliveries) == [1, 2, 3]


async def test_a_waiting_queue_does_not_delay_other_runs(store_with_deliveries: Store) -> None:
    await store_with_deliveries.settle_deliveries(TENANT, settlement(due_at=T0 + 9, attempts=1))

    await store_with_deliveries.append(TENANT, [batch_with_deliveries("run-2")])

    assert [lane.run_id for lane in await lanes(store_with_deliveries)] == ["run-2"]


async def test_the_health_of_a_receiver_is_stored(store_with_deliveries: Store) -> None:
    health = WebhookHealth(state="open", failures=4, recent=(T0, T0 + 1), open_until=T0 + 60)

    await store_with_deliveries.settle_deliveries(
        TENANT, settlement(health=health, due_at=T0 + 5, attempts=1)
    )

    assert await store_with_deliveries.webhook(TENANT, "wh-1") == webhook(health=health)


async def test_a_dead_letter_is_listed_and_later_events_are_delivered(
    store_with_deliveries: Store,
) -> None:
    await store_with_deliveries.settle_deliveries(TENANT, settlement(dead=letter()))

    page = await store_with_deliveries.dead_letters(TENANT, "wh-1", None, 10)
    assert page.letters == (letter(),)
    assert (await store_with_deliveries.dead_letters(OTHER, "wh-1", None, 10)).letters == ()
    assert await queued(store_with_deliveries) == [1, 2]


async def test_dead_letters_are_listed_in_pages_newest_first(store_with_deliveries: Store) -> None:
    for sequence in range(3):
        dead = letter(sequence=sequence, at=T0 + sequence // 2)
        await store_with_deliveries.settle_deliveries(TENANT, settlement(dead=dead))

    first = await store_with_deliveries.dead_letters(TENANT, "wh-1", None, 2)
    second = await store_with_deliveries.dead_letters(TENANT, "wh-1", first.next_after, 2)

    assert [each.sequence for each in first.letters] == [2, 1]
    assert [each.sequence for each in second.letters] == [0]
    assert second.next_after is None


async def test_dead_letters_are_delivered_before_later_events(store_with_deliveries: Store) -> None:
    health = WebhookHealth(state="open", failures=4, recent=(T0,), open_until=T0 + 60)
    await store_with_deliveries.settle_deliveries(
        TENANT, settlement(dead=letter(), health=health, due_at=T0 + 50, attempts=2)
    )

    count = await store_with_deliveries.redeliver(TENANT, "wh-1", T0 + 1, 10)

    assert count == 1
    assert await queued(store_with_deliveries) == [0, 1, 2]
    assert await lanes(store_with_deliveries, T0 + 1) == [DeliveryQueue(run_id="run-1", attempts=0)]
    assert await store_with_deliveries.webhook(TENANT, "wh-1") == webhook()
    assert (await store_with_deliveries.dead_letters(TENANT, "wh-1", None, 10)).letters == ()


async def test_a_redelivery_moves_at_most_the_limit_of_dead_letters(
    store_with_deliveries: Store,
) -> None:
    for sequence in range(3):
        dead = letter(sequence=sequence, at=T0 + sequence)
        await store_with_deliveries.settle_deliveries(TENANT, settlement(dead=dead))

    assert await store_with_deliveries.redeliver(TENANT, "wh-1", T0, 2) == 2

    assert await queued(store_with_deliveries) == [0, 1]
    assert len((await store_with_deliveries.dead_letters(TENANT, "wh-1", None, 10)).letters) == 1


async def test_all_deliveries_of_a_failed_subscription_become_dead_letters(
    store_with_deliveries: Store,
) -> None:
    await store_with_deliveries.append(TENANT, [batch_with_deliveries("run-2", count=2)])

    await store_with_deliveries.settle_deliveries(
        TENANT, settlement(health=WebhookHealth(state="failed"), now=T0 + 7)
    )

    page = await store_with_deliveries.dead_letters(TENANT, "wh-1", None, 10)
    assert {(each.run_id, each.sequence) for each in page.letters} == {
        *(("run-1", sequence) for sequence in range(3)),
        *(("run-2", sequence) for sequence in range(2)),
    }
    assert {each.died_at for each in page.letters} == {T0 + 7}
    assert await store_with_deliveries.webhooks_with_deliveries() == []


async def test_a_settlement_for_a_deleted_subscription_changes_nothing(
    store_with_deliveries: Store,
) -> None:
    await store_with_deliveries.delete_webhook(TENANT, "wh-1")

    await store_with_deliveries.settle_deliveries(TENANT, settlement(dead=letter()))

    assert (await store_with_deliveries.dead_letters(TENANT, "wh-1", None, 10)).letters == ()


async def test_retention_deletes_the_deliveries_of_a_run(store_with_deliveries: Store) -> None:
    await store_with_deliveries.settle_deliveries(TENANT, settlement(dead=letter()))
    await store_with_deliveries.append(TENANT, [replace(ended(first=3), deliveries=())])

    assert await store_with_deliveries.delete_expired_runs(T0 + 100, 10) == 1

    assert await store_with_deliveries.webhooks_with_deliveries() == []
    assert (await store_with_deliveries.dead_letters(TENANT, "wh-1", None, 10)).letters == ()


async def test_each_subscription_with_due_deliveries_is_listed_once(store: Store) -> None:
    for number in range(5):
        await store.put_webhook(TENANT, webhook(f"wh-{number}"))
    for run_id in ("run-1", "run-2"):
        await store.append(TENANT, [batch_with_deliveries(run_id, to=("wh-1", "wh-3", "wh-4"))])

    assert await store.webhooks_with_deliveries() == [(TENANT, f"wh-{n}") for n in (1, 3, 4)]


async def test_a_run_without_subscriptions_has_no_delivery_rows(store: Store) -> None:
    await store.put_webhook(TENANT, webhook())

    await store.append(TENANT, [batch()])

    assert await store.webhooks_with_deliveries() == []
