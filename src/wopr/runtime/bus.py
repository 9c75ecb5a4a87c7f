"""The bus: tells readers in this process that a run's log has grown.

It keeps the last few events of each run that has readers. A reader that fell behind takes the
rest from the store, so nothing is lost and nothing queues up per reader. Readers of one run share
the bytes of its large events and of its snapshot.

Beside them it carries notices, which are on no log: who reads now hears of them, and nobody later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from weakref import WeakValueDictionary

import anyio

from wopr.protocol.errors import RateLimited
from wopr.store.port import StoredEvent

RECENT = 256
# The bytes of the recent events of one run. Readers take larger events from the store.
RECENT_BYTES = 128 * 1024
# Events from this size on are shared between the readers that took them from the store.
LARGE_BYTES = 16 * 1024
# So many notices wait for a reader that is busy with earlier ones; of more it hears the last.
NOTICES = 64
# So many are known again when this process hears of them once more.
NAMES = 1024


@dataclass(frozen=True, slots=True)
class SnapshotBody:
    """An encoded snapshot and the sequence that it is the fold of."""

    body: bytes
    sequence: int
    has_token: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that readers are told live and that is no event of the log."""

    event: str
    data: bytes


class Topic:
    """What readers of one run share."""

    def __init__(self) -> None:
        self.readers = 0
        # Recent events without a gap, the last of which is the one before `next_sequence`.
        self.recent: deque[StoredEvent] = deque()
        # The sequence after the last event that readers were offered; 0 when there is none.
        self.next_sequence = 0
        self._recent_bytes = 0
        # Large events that at least one reader holds, by their sequence.
        self._large: WeakValueDictionary[int, StoredEvent] = WeakValueDictionary()
        # The newest encoded snapshot that a reader was sent.
        self.snapshot: SnapshotBody | None = None
        # How many notices there have been: a reader hears those that come after it did.
        self.noticed = 0
        self._notices: deque[Notice] = deque(maxlen=NOTICES)
        self._news = anyio.Event()

    def publish(self, events: Sequence[StoredEvent]) -> None:
        """Offer committed events and wake every reader; without any, let them look at the store."""
        if not events:
            self._forget()
        new = [event for event in events if event.sequence >= self.next_sequence]
        if self.next_sequence and new and new[0].sequence > self.next_sequence:
            # Another writer's events are in between: readers take those from the store.
            self._forget()
        for event in new:
            self.recent.append(event)
            self._recent_bytes += len(event.body)
        if new:
            self.next_sequence = new[-1].sequence + 1
        while len(self.recent) > RECENT or self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self.recent.popleft().body)
        self._wake()

    def _forget(self) -> None:
        self.recent.clear()
        self._recent_bytes = self.next_sequence = 0

    def shared(self, events: list[StoredEvent]) -> list[StoredEvent]:
        """The same events, the large ones as the objects that other readers hold already."""
        return [self._shared(e) if len(e.body) >= LARGE_BYTES else e for e in events]

    def _shared(self, event: StoredEvent) -> StoredEvent:
        known = self._large.get(event.sequence)
        if known is not None and known == event:
            return known
        self._large[event.sequence] = event
        return event

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

    def topic(self, run_id: str) -> Topic | None:
        """What the readers of this run share; None when it has no readers."""
        return self._topics.get(run_id)

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
