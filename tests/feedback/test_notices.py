from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from wopr.http.limits import OpenStream
from wopr.http.response import JSON, StreamResponse, send_stream
from wopr.runs.event_bus import MAX_NOTICES, Bus, Notice, Topic
from wopr.security.api_keys import Principal

pytestmark = pytest.mark.anyio


def notice(name: int) -> Notice:
    return Notice("run.annotated", str(name).encode())


def heard(topic: Topic, since: int) -> list[int]:
    return [int(each.data) for each in topic.notices(since)]


async def test_a_reader_receives_the_notices_after_it_subscribed() -> None:
    topic = Topic()
    topic.notify(notice(1))
    since = topic.notice_count

    topic.notify(notice(2))
    topic.notify(notice(3))

    assert heard(topic, since) == [2, 3]
    assert heard(topic, topic.notice_count) == []


async def test_a_slow_reader_receives_the_last_notices() -> None:
    topic = Topic()

    for name in range(MAX_NOTICES + 10):
        topic.notify(notice(name))

    assert heard(topic, 0) == list(range(10, MAX_NOTICES + 10))


async def test_a_notice_wakes_waiting_readers() -> None:
    bus = Bus(10)
    with bus.subscribe("run-1") as topic, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(topic.changed.wait)
            await anyio.wait_all_tasks_blocked()

            bus.notify("run-1", notice(1))

    bus.notify("run-1", notice(2))
    with bus.subscribe("run-1") as fresh:
        assert fresh.notice_count == 0


async def test_a_later_reader_does_not_receive_earlier_notices() -> None:
    bus = Bus(10)
    bus.notify("run-1", notice(1), "annotation-1")

    with bus.subscribe("run-1") as topic:
        # Another process, or the store, reports the same notice after the reader subscribed.
        bus.notify("run-1", notice(1), "annotation-1")
        bus.notify("run-1", notice(2), "annotation-2")

    assert heard(topic, 0) == [2]


@pytest.mark.parametrize("is_document", [True, False])
async def test_an_unfinished_document_is_not_closed_when_the_host_stops(is_document: bool) -> None:
    stopping = anyio.Event()
    sent: list[Any] = []

    async def endless() -> AsyncIterator[bytes]:
        yield b"half"
        stopping.set()
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await anyio.sleep_forever()

    caller = Principal(key_id="key", tenant="acme", role="viewer", scopes=frozenset(), is_test=True)
    opened = OpenStream(caller, caller.key_id, anyio.lowlevel.checkpoint)
    with anyio.fail_after(60):
        await send_stream(
            send, receive, StreamResponse(endless(), JSON, is_document), opened, stopping
        )

    is_ended = not sent[-1].get("more_body", False)
    assert is_ended is not is_document
