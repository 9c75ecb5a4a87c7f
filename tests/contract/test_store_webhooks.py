from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.contract.builders import OTHER, T0, TENANT, answer, batch, ended, events, run
from wopr.protocol.errors import Conflict
from wopr.store.port import Batch, Store
from wopr.store.port.webhooks import (
    DeadLetter,
    Health,
    Lane,
    Notice,
    Rotation,
    Settlement,
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


def telling(
    run_id: str = "run-1",
    first: int = 0,
    count: int = 3,
    *,
    to: Sequence[str] = ("wh-1",),
    sequences: Sequence[int] | None = None,
    at: int = T0,
) -> Batch:
    """A batch whose events webhooks are to be told of."""
    told = tuple(range(first, first + count)) if sequences is None else tuple(sequences)
    return Batch(
        run=run(run_id, first + count - 1, updated_at=at),
        first=first,
        events=events(first, count),
        notices=tuple(Notice(webhook_id=name, sequences=told) for name in to),
    )


def settlement(run_id: str = "run-1", **changes: object) -> Settlement:
    fields: dict[str, object] = {"webhook_id": "wh-1", "health": Health(), "now": T0, "due_at": T0}
    return Settlement(run_id=run_id, **{**fields, **changes})  # type: ignore[arg-type]  # see webhook()


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


async def lanes(store: Store, now: int = T0, webhook_id: str = "wh-1") -> list[Lane]:
    return await store.due_lanes(TENANT, webhook_id, now, 100)


@pytest.fixture
async def told(store: Store) -> Store:
    """A store in which one webhook has three events of one run to be told."""
    await store.put_webhook(TENANT, webhook())
    await store.append(TENANT, [telling()])
    return store


# Subscriptions


async def test_a_subscription_is_kept_as_it_was_given(store: Store) -> None:
    row = webhook(tags=("red", "blue"), events=("run.*", "node.failed"))

    await store.put_webhook(TENANT, row)

    assert await store.webhook(TENANT, "wh-1") == row
    assert await store.webhook_ids(None, 10) == [(TENANT, "wh-1")]


async def test_a_foreign_subscription_can_be_neither_seen_nor_changed(told: Store) -> None:
    rotation = Rotation(secret=b"new", fingerprint="ffff0000", old_secret_until=T0)

    assert await told.webhook(OTHER, "wh-1") is None
    assert await told.webhooks(OTHER, None, 10) == []
    assert not await told.rotate_webhook(OTHER, "wh-1", rotation)
    assert not await told.delete_webhook(OTHER, "wh-1")
    assert await told.due_lanes(OTHER, "wh-1", T0, 10) == []
    assert await told.next_lane_due(OTHER, "wh-1") is None
    assert await told.deliveries(OTHER, "wh-1", "run-1", 10) == []
    assert await told.redeliver(OTHER, "wh-1", T0, 10) == 0
    await told.settle_deliveries(OTHER, settlement(delivered=(0, 1, 2)))
    assert await told.webhook(TENANT, "wh-1") == webhook()
    assert await queued(told) == [0, 1, 2]


async def test_subscriptions_are_listed_newest_first_in_pages(store: Store) -> None:
    for number in range(5):
        await store.put_webhook(TENANT, webhook(f"wh-{number}", T0 + number // 2))

    first = await store.webhooks(TENANT, None, 3)
    last = first[-1]
    second = await store.webhooks(TENANT, (last.created_at, last.webhook_id), 3)

    names = [row.webhook_id for row in [*first, *second]]
    assert names == ["wh-4", "wh-3", "wh-2", "wh-1", "wh-0"]


async def test_owners_and_ids_of_all_subscriptions_come_in_pages(store: Store) -> None:
    for tenant, name in ((TENANT, "wh-1"), (OTHER, "wh-2"), (TENANT, "wh-3")):
        await store.put_webhook(tenant, webhook(name))

    first = await store.webhook_ids(None, 2)
    second = await store.webhook_ids(first[-1][1], 2)

    assert [*first, *second] == [(TENANT, "wh-1"), (OTHER, "wh-2"), (TENANT, "wh-3")]


async def test_a_subscription_is_kept_with_the_answer_to_its_request(store: Store) -> None:
    await store.put_webhook(TENANT, webhook(), answer())

    with pytest.raises(Conflict) as taken:
        await store.put_webhook(TENANT, webhook("wh-2"), answer())

    assert taken.value.code == "idempotency_in_flight"
    assert await store.answer(TENANT, b"k") == answer()
    assert await store.webhook(TENANT, "wh-2") is None


async def test_a_rotation_keeps_the_secret_before_for_a_while(store: Store) -> None:
    await store.put_webhook(TENANT, webhook())
    rotation = Rotation(secret=b"new", fingerprint="ffff0000", old_secret_until=T0 + 5)

    assert await store.rotate_webhook(TENANT, "wh-1", rotation, answer())

    assert await store.webhook(TENANT, "wh-1") == webhook(
        secret=b"new", fingerprint="ffff0000", old_secret=b"sealed", old_secret_until=T0 + 5
    )
    assert await store.answer(TENANT, b"k") == answer()
    assert not await store.rotate_webhook(TENANT, "wh-9", rotation)


async def test_a_deleted_subscription_takes_all_that_was_queued_along(told: Store) -> None:
    await told.settle_deliveries(TENANT, settlement(dead=letter()))

    assert await told.delete_webhook(TENANT, "wh-1")

    assert await told.webhook(TENANT, "wh-1") is None
    assert await queued(told) == []
    assert await told.undelivered() == []
    assert (await told.dead_letters(TENANT, "wh-1", None, 10)).letters == ()
    assert not await told.delete_webhook(TENANT, "wh-1")


# What is queued


async def test_events_are_queued_with_the_append_that_writes_them(told: Store) -> None:
    assert await told.undelivered() == [(TENANT, "wh-1")]
    assert await lanes(told) == [Lane(run_id="run-1", attempts=0)]
    found = await told.deliveries(TENANT, "wh-1", "run-1", 2)
    assert [(d.sequence, d.type, d.body) for d in found] == [
        (0, "node.completed", b"0"),
        (1, "node.completed", b"1"),
    ]


async def test_an_append_that_fails_queues_nothing(told: Store) -> None:
    with pytest.raises(Conflict):
        await told.append(TENANT, [telling("run-2"), telling(first=0)])

    assert await queued(told, "run-2") == []


async def test_only_the_named_events_are_queued(store: Store) -> None:
    await store.put_webhook(TENANT, webhook())

    await store.append(TENANT, [telling(sequences=(0, 2))])

    assert await queued(store) == [0, 2]


@pytest.mark.parametrize("name", ["wh-gone", "wh-theirs", "wh-failed"])
async def test_a_subscription_that_is_gone_foreign_or_failed_is_told_nothing(
    store: Store, name: str
) -> None:
    await store.put_webhook(OTHER, webhook("wh-theirs"))
    await store.put_webhook(TENANT, webhook("wh-failed"))
    failed = settlement(webhook_id="wh-failed", health=Health(state="failed"))
    await store.settle_deliveries(TENANT, failed)

    await store.append(TENANT, [telling(to=(name,))])

    assert await store.undelivered() == []
    assert await queued(store, webhook_id=name) == []


async def test_a_lane_is_due_from_when_its_events_came(store: Store) -> None:
    await store.put_webhook(TENANT, webhook())
    await store.append(TENANT, [telling("late", at=T0 + 5), telling("early", at=T0 + 1)])

    assert await lanes(store, T0) == []
    assert [lane.run_id for lane in await lanes(store, T0 + 1)] == ["early"]
    assert [lane.run_id for lane in await lanes(store, T0 + 5)] == ["early", "late"]
    assert await store.next_lane_due(TENANT, "wh-1") == T0 + 1


# What comes of it


async def test_what_was_delivered_is_queued_no_longer(told: Store) -> None:
    await told.settle_deliveries(TENANT, settlement(delivered=(0, 1)))
    left = await queued(told)
    await told.settle_deliveries(TENANT, settlement(delivered=(2,)))

    assert left == [2]
    assert await told.next_lane_due(TENANT, "wh-1") is None
    assert await told.undelivered() == []


async def test_a_lane_whose_first_event_failed_waits_with_all_that_follow(told: Store) -> None:
    await told.settle_deliveries(TENANT, settlement(delivered=(0,), due_at=T0 + 9, attempts=1))
    await told.append(TENANT, [telling(first=3, count=1)])

    assert await lanes(told, T0 + 8) == []
    assert await lanes(told, T0 + 9) == [Lane(run_id="run-1", attempts=1)]
    assert await queued(told) == [1, 2, 3]


async def test_one_run_that_waits_keeps_no_other_waiting(told: Store) -> None:
    await told.settle_deliveries(TENANT, settlement(due_at=T0 + 9, attempts=1))

    await told.append(TENANT, [telling("run-2")])

    assert [lane.run_id for lane in await lanes(told)] == ["run-2"]


async def test_the_health_of_a_receiver_is_kept(told: Store) -> None:
    health = Health(state="open", failures=4, recent=(T0, T0 + 1), open_until=T0 + 60)

    await told.settle_deliveries(TENANT, settlement(health=health, due_at=T0 + 5, attempts=1))

    assert await told.webhook(TENANT, "wh-1") == webhook(health=health)


async def test_what_is_given_up_is_listed_and_what_follows_goes_on(told: Store) -> None:
    await told.settle_deliveries(TENANT, settlement(dead=letter()))

    page = await told.dead_letters(TENANT, "wh-1", None, 10)
    assert page.letters == (letter(),)
    assert (await told.dead_letters(OTHER, "wh-1", None, 10)).letters == ()
    assert await queued(told) == [1, 2]


async def test_dead_letters_come_in_pages_newest_first(told: Store) -> None:
    for sequence in range(3):
        dead = letter(sequence=sequence, at=T0 + sequence // 2)
        await told.settle_deliveries(TENANT, settlement(dead=dead))

    first = await told.dead_letters(TENANT, "wh-1", None, 2)
    second = await told.dead_letters(TENANT, "wh-1", first.next_after, 2)

    assert [each.sequence for each in first.letters] == [2, 1]
    assert [each.sequence for each in second.letters] == [0]
    assert second.next_after is None


async def test_dead_letters_are_delivered_before_what_comes_after_them(told: Store) -> None:
    health = Health(state="open", failures=4, recent=(T0,), open_until=T0 + 60)
    await told.settle_deliveries(
        TENANT, settlement(dead=letter(), health=health, due_at=T0 + 50, attempts=2)
    )

    count = await told.redeliver(TENANT, "wh-1", T0 + 1, 10)

    assert count == 1
    assert await queued(told) == [0, 1, 2]
    assert await lanes(told, T0 + 1) == [Lane(run_id="run-1", attempts=0)]
    assert await told.webhook(TENANT, "wh-1") == webhook()
    assert (await told.dead_letters(TENANT, "wh-1", None, 10)).letters == ()


async def test_no_more_dead_letters_are_delivered_at_once_than_asked_for(told: Store) -> None:
    for sequence in range(3):
        dead = letter(sequence=sequence, at=T0 + sequence)
        await told.settle_deliveries(TENANT, settlement(dead=dead))

    assert await told.redeliver(TENANT, "wh-1", T0, 2) == 2

    assert await queued(told) == [0, 1]
    assert len((await told.dead_letters(TENANT, "wh-1", None, 10)).letters) == 1


async def test_a_subscription_that_failed_gives_up_all_it_had_still_to_be_told(
    told: Store,
) -> None:
    await told.append(TENANT, [telling("run-2", count=2)])

    await told.settle_deliveries(TENANT, settlement(health=Health(state="failed"), now=T0 + 7))

    page = await told.dead_letters(TENANT, "wh-1", None, 10)
    assert {(each.run_id, each.sequence) for each in page.letters} == {
        *(("run-1", sequence) for sequence in range(3)),
        *(("run-2", sequence) for sequence in range(2)),
    }
    assert {each.died_at for each in page.letters} == {T0 + 7}
    assert await told.undelivered() == []


async def test_a_settlement_of_a_subscription_that_is_gone_changes_nothing(told: Store) -> None:
    await told.delete_webhook(TENANT, "wh-1")

    await told.settle_deliveries(TENANT, settlement(dead=letter()))

    assert (await told.dead_letters(TENANT, "wh-1", None, 10)).letters == ()


async def test_retention_takes_what_was_still_to_be_said_about_a_run(told: Store) -> None:
    await told.settle_deliveries(TENANT, settlement(dead=letter()))
    await told.append(TENANT, [replace(ended(first=3), notices=())])

    assert await told.expire(T0 + 100, 10) == 1

    assert await told.undelivered() == []
    assert (await told.dead_letters(TENANT, "wh-1", None, 10)).letters == ()


async def test_every_subscription_that_is_owed_something_is_named_once(store: Store) -> None:
    for number in range(5):
        await store.put_webhook(TENANT, webhook(f"wh-{number}"))
    for run_id in ("run-1", "run-2"):
        await store.append(TENANT, [telling(run_id, to=("wh-1", "wh-3", "wh-4"))])

    assert await store.undelivered() == [(TENANT, f"wh-{n}") for n in (1, 3, 4)]


async def test_a_run_that_nobody_hears_of_costs_no_row(store: Store) -> None:
    await store.put_webhook(TENANT, webhook())

    await store.append(TENANT, [batch()])

    assert await store.undelivered() == []
