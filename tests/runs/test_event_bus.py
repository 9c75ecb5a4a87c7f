"""The events that readers of one process receive of a log that several processes write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wopr.runs.event_bus import Bus, Topic
from wopr.store.port import StoredEvent

RUN = "run-1"
LENGTH = 12


def log(start: int, end: int) -> list[StoredEvent]:
    """Return the events of a log from one sequence up to, but not including, another."""
    return [StoredEvent(sequence=n, type="x", body=b"{}") for n in range(start, end)]


def sequences(events: list[StoredEvent] | None) -> list[int] | None:
    return None if events is None else [event.sequence for event in events]


def test_events_published_earlier_do_not_hide_later_ones() -> None:
    topic = Topic()
    topic.publish(log(5, 7))

    topic.publish(log(5, 6))

    assert sequences(topic.since(5)) == [5, 6]


def test_after_a_gap_readers_use_the_store() -> None:
    topic = Topic()
    topic.publish(log(0, 3))

    topic.publish(log(5, 6))

    assert topic.since(3) is None
    assert sequences(topic.since(5)) == [5]


def test_without_published_events_readers_use_the_store() -> None:
    topic = Topic()
    topic.publish(log(0, 3))

    topic.publish(())

    assert topic.since(3) is None


def test_only_missing_events_are_read_from_the_store() -> None:
    bus = Bus(max_readers_per_run=5)

    assert bus.first_missing(RUN, 4) is None
    with bus.subscribe(RUN):
        assert bus.first_missing(RUN, 4) == 4
        bus.publish(RUN, log(0, 3))
        assert bus.first_missing(RUN, 4) == 3
        bus.publish(RUN, log(3, 5))
        assert bus.first_missing(RUN, 4) is None


@given(
    st.lists(st.tuples(st.integers(0, LENGTH - 1), st.integers(1, 4), st.booleans()), max_size=20)
)
def test_a_reader_of_the_topic_misses_no_published_event(
    offers: list[tuple[int, int, bool]],
) -> None:
    topic = Topic()
    start, offered = 0, 0
    for first, count, is_read in offers:
        events = log(first, min(first + count, LENGTH))
        topic.publish(events)
        offered = max(offered, events[-1].sequence + 1)
        if is_read:
            found = topic.since(start)
            # Without the shortcut it reads the store, which has all published events, and more.
            found = log(start, offered) if found is None else found
            assert sequences(found) == list(range(start, max(start, offered)))
            start = max(start, offered)
