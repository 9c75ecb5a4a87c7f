"""The event bus: wakes the readers of a run in this process when its log has grown.

It keeps the last few events of each run that has readers. A slow reader reads the rest from the
store, so that no event is lost and no reader needs a queue. Readers of one run share the bytes of
its large events and of its snapshot.

The bus also carries notices, which are not on the log: only current readers get them.
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

MAX_RECENT = 256
# The most bytes of the recent events of one run. Readers read larger events from the store.
MAX_RECENT_BYTES = 128 * 1024
# Events of at least this size are shared between the readers that read them from the store.
LARGE_BYTES = 16 * 1024
# Number of notices kept for a slow reader. Older ones are dropped.
MAX_NOTICES = 64
# Number of recent notice names kept for de-duplication.
MAX_NAMES = 1024


@dataclass(frozen=True, slots=True)
class SnapshotBody:
    """An encoded snapshot and the sequence of its last event."""

    body: bytes
    sequence: int
    has_token: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for current readers that is not an event of the log."""

    event: str
    data: bytes


class Topic:
    """The state that the readers of one run share."""

    def __init__(self) -> None:
        self.readers = 0
        # Recent events without a gap, up to the one before `next_sequence`.
        self.recent: deque[StoredEvent] = deque()
        # The sequence after the last published event; 0 when there is none.
        self.next_sequence = 0
        self._recent_bytes = 0
        # Large events that at least one reader keeps, by their sequence.
        self._large: WeakValueDictionary[int, StoredEvent] = WeakValueDictionary()
        # The newest encoded snapshot that was sent to a reader.
        self.snapshot: SnapshotBody | None = None
        # The number of notices so far. A reader gets the notices after its start.
        self.notice_count = 0
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._changed = anyio.Event()

    def publish(self, events: Sequence[StoredEvent]) -> None:
        """Publish committed events and wake every reader.

        Without events, readers query the store.
        """
        if not events:
            self._clear_recent()
        new = [event for event in events if event.sequence >= self.next_sequence]
        if self.next_sequence and new and new[0].sequence > self.next_sequence:
            # Another process wrote the events in between: readers read them from the store.
            self._clear_recent()
        for event in new:
            self.recent.append(event)
            self._recent_bytes += len(event.body)
        if new:
            self.next_sequence = new[-1].sequence + 1
        while len(self.recent) > MAX_RECENT or self._recent_bytes > MAX_RECENT_BYTES:
            self._recent_bytes -= len(self.recent.popleft().body)
        self._wake()

    def _clear_recent(self) -> None:
        self.recent.clear()
        self._recent_bytes = self.next_sequence = 0

    def share_large(self, events: list[StoredEvent]) -> list[StoredEvent]:
        """Return the events, with large ones replaced by the equal objects of other readers."""
        return [self._share(e) if len(e.body) >= LARGE_BYTES else e for e in events]

    def _share(self, event: StoredEvent) -> StoredEvent:
        known = self._large.get(event.sequence)
        if known is not None and known == event:
            return known
        self._large[event.sequence] = event
        return event

    def notify(self, notice: Notice) -> None:
        """Send a notice to every reader."""
        self._notices.append(notice)
        self.notice_count += 1
        self._wake()

    def notices(self, seen: int) -> list[Notice]:
        """Return the notices after the first `seen` ones."""
        missed = self.notice_count - seen
        return list(self._notices)[-missed:] if missed else []

    def since(self, start: int) -> list[StoredEvent] | None:
        """Return recent events from `start` on; None when they are only in the store.

        An empty list means that the next publication has the event at `start`.
        """
        if not self.recent or self.recent[0].sequence > start:
            return None
        # The recent events have no gap, so the number of wanted events is known. A fast reader
        # wants one or two.
        newest = islice(reversed(self.recent), max(self.next_sequence - start, 0))
        return list(newest)[::-1]

    @property
    def changed(self) -> anyio.Event:
        """The `anyio.Event` that the next publication or notice sets.

        Get it before the store is read, so that no publication is missed.
        """
        return self._changed

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class Bus:
    """All topics that have readers."""

    def __init__(self, max_readers_per_run: int) -> None:
        self.is_closed = False
        self._topics: dict[str, Topic] = {}
        self._recent_names: deque[str] = deque(maxlen=MAX_NAMES)
        self._max_readers = max_readers_per_run

    @property
    def readers(self) -> int:
        """The number of readers."""
        return sum(topic.readers for topic in self._topics.values())

    def publish(self, run_id: str, events: Sequence[StoredEvent]) -> None:
        """Publish committed events to the readers of a run."""
        topic = self._topics.get(run_id)
        if topic is not None:
            topic.publish(events)

    def first_missing(self, run_id: str, sequence: int) -> int | None:
        """Return the first sequence up to `sequence` that readers lack; None if they have all."""
        topic = self._topics.get(run_id)
        if topic is None or topic.next_sequence > sequence:
            return None
        return topic.next_sequence or sequence

    def wake_all(self) -> None:
        """Let every reader query the store: a notification may have been lost."""
        for topic in self._topics.values():
            topic.publish(())

    def topic(self, run_id: str) -> Topic | None:
        """Return the shared state of the readers of a run; None when it has no readers."""
        return self._topics.get(run_id)

    def has_readers(self, run_id: str) -> bool:
        """Return whether a run has readers."""
        return run_id in self._topics

    def notify(self, run_id: str, notice: Notice, name: str = "") -> None:
        """Send a notice to the current readers of a run. Later readers do not get it.

        A second notice with the same name is dropped.
        """
        if name:
            if name in self._recent_names:
                return
            self._recent_names.append(name)
        topic = self._topics.get(run_id)
        if topic is not None:
            topic.notify(notice)

    def close(self) -> None:
        """Wake all readers so that they end: the host stops."""
        self.is_closed = True
        self.wake_all()

    def admit(self, run_id: str) -> None:
        """Refuse a further reader of a run that has too many. Raises `RateLimited`."""
        topic = self._topics.get(run_id)
        if topic is not None and topic.readers >= self._max_readers:
            raise RateLimited(
                f"this run has {topic.readers} readers already", retry_after=5, scope="route"
            )

    @contextmanager
    def subscribe(self, run_id: str) -> Generator[Topic, None, None]:
        """Subscribe to a run. Subscribe before reading the store, so that there is no gap."""
        topic = self._topics.setdefault(run_id, Topic())
        topic.readers += 1
        try:
            yield topic
        finally:
            topic.readers -= 1
            if not topic.readers:
                self._topics.pop(run_id, None)
