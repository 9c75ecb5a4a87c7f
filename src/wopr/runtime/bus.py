"""The bus: tells readers in this process that a run's log has grown.

It carries the last few events of each run that somebody reads, as a shortcut; a reader that
fell behind takes the rest from the store, so nothing is lost and nothing queues up per reader.

Beside them it carries notices, which are on no log: who reads now hears of them, and nobody later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import anyio

from wopr.protocol.errors import RateLimited
from wopr.store.port import StoredEvent

RECENT = 256
# So many notices wait for a reader that is busy with earlier ones; of more it hears the last.
NOTICES = 64
# So many are known again when this process hears of them once more.
NAMES = 1024


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that readers are told live and that is no event of the log."""

    event: str
    data: bytes


class Topic:
    """What readers of one run share."""

    def __init__(self) -> None:
        self.readers = 0
        self.recent: deque[StoredEvent] = deque(maxlen=RECENT)
        # How many notices there have been: a reader hears those that come after it did.
        self.noticed = 0
        self._notices: deque[Notice] = deque(maxlen=NOTICES)
        self._news = anyio.Event()

    def publish(self, events: Sequence[StoredEvent]) -> None:
        """Offer committed events and wake every reader; without any, let them look at the store."""
        if not events:
            self.recent.clear()
        new = [event for event in events if event.sequence >= self.next_sequence]
        if self.recent and new and new[0].sequence > self.next_sequence:
            # Another writer's events are in between: readers take those from the store.
            self.recent.clear()
        self.recent.extend(new)
        self._wake()

    def notify(self, notice: Notice) -> None:
        """Tell every reader something that is not on the log."""
        self._notices.append(notice)
        self.noticed += 1
        self._wake()

    def notices(self, heard: int) -> list[Notice]:
        """The notices after so many of them."""
        missed = self.noticed - heard
        return list(self._notices)[-missed:] if missed else []

    def since(self, start: int) -> list[StoredEvent] | None:
        """Recent events from `start` on; None when the shortcut does not reach back that far.

        When there are none yet, the next publication has them.
        """
        if not self.recent or self.recent[0].sequence > start:
            return None
        # The recent events are without a gap, so the number of those wanted is known: a reader
        # that keeps up wants one or two, and asks after every event.
        newest = islice(reversed(self.recent), max(self.next_sequence - start, 0))
        return list(newest)[::-1]

    @property
    def next_sequence(self) -> int:
        """Where the events go on that readers were offered last; 0 when there are none."""
        return self.recent[-1].sequence + 1 if self.recent else 0

    @property
    def news(self) -> anyio.Event:
        """Set by the next publication or notice; taken before a look at the store, none is missed."""
        return self._news

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()


class Bus:
    """All topics that have readers."""

    def __init__(self, max_readers_per_run: int) -> None:
        self.is_closed = False
        self._topics: dict[str, Topic] = {}
        self._named: deque[str] = deque(maxlen=NAMES)
        self._max_readers = max_readers_per_run

    @property
    def readers(self) -> int:
        """How many readers there are."""
        return sum(topic.readers for topic in self._topics.values())

    def publish(self, run_id: str, events: Sequence[StoredEvent]) -> None:
        """Offer committed events to whoever reads this run."""
        topic = self._topics.get(run_id)
        if topic is not None:
            topic.publish(events)

    def missing(self, run_id: str, sequence: int) -> int | None:
        """From where on readers lack a log that reaches up to there; None when nobody does."""
        topic = self._topics.get(run_id)
        if topic is None or topic.next_sequence > sequence:
            return None
        return topic.next_sequence or sequence

    def wake_all(self) -> None:
        """Let every reader look at the store: news of what it waits for may have been lost."""
        for topic in self._topics.values():
            topic.publish(())

    def has_readers(self, run_id: str) -> bool:
        """Whether anybody reads this run now."""
        return run_id in self._topics

    def notify(self, run_id: str, notice: Notice, name: str = "") -> None:
        """Tell whoever reads this run now; of two notices with one name only the first.

        It has been told even when nobody read: who comes later must not hear of it late.
        """
        if name:
            if name in self._named:
                return
            self._named.append(name)
        topic = self._topics.get(run_id)
        if topic is not None:
            topic.notify(notice)

    def close(self) -> None:
        """Let waiting readers know that the host stops: nobody should keep it waiting for news."""
        self.is_closed = True
        self.wake_all()

    def admit(self, run_id: str) -> None:
        """Refuse a reader of a run that has enough of them, while that can still be answered."""
        topic = self._topics.get(run_id)
        if topic is not None and topic.readers >= self._max_readers:
            raise RateLimited(
                f"this run has {topic.readers} readers already", retry_after=5, scope="route"
            )

    @contextmanager
    def subscribe(self, run_id: str) -> Generator[Topic, None, None]:
        """Read a run's topic; subscribe before reading the backlog and there is no gap."""
        topic = self._topics.setdefault(run_id, Topic())
        topic.readers += 1
        try:
            yield topic
        finally:
            topic.readers -= 1
            if not topic.readers:
                self._topics.pop(run_id, None)
