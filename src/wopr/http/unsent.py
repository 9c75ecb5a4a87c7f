"""Answers that wait for their clients to read: their bytes have one budget in each process.

A large answer is sent in slices, each once the client has read enough of those before. The bytes
that are left are counted here. When they are more than the budget, connections are closed: first
those of the tenant that holds the most, the one that has waited longest first. A client that reads
slower than the minimum rate is closed too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from wopr.protocol.errors import Unavailable

# The largest part of an answer that is written at once. A smaller answer is written whole.
SLICE_BYTES: Final = 64 * 1024
# An answer of which its client has read nothing for so long may be closed when another needs room.
PATIENCE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 2

log = structlog.get_logger("wopr.http")


@dataclass(slots=True, eq=False)
class UnsentAnswer:
    """A large answer that is being sent."""

    tenant: str
    body: bytes
    close: Callable[[], None]
    # When the client last read a part of it.
    read_at: float


class Unsent:
    """The large answers of one process that are being sent."""

    def __init__(self, most_bytes: int, clock: Callable[[], float]) -> None:
        self.most_bytes = most_bytes
        # Bytes of streams that wait for their readers, and in the buffers of connections.
        self.other_bytes = 0
        self._clock = clock
        # The one that has waited longest for its client is first.
        self._answers: dict[UnsentAnswer, None] = {}
        # Answers may share a body: its size, and how many answers have it.
        self._bodies: dict[int, tuple[int, int]] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes of the answers that are being sent."""
        return self._size

    @contextmanager
    def hold(
        self, tenant: str, body: bytes, close: Callable[[], None], *, must: bool = False
    ) -> Generator[UnsentAnswer, None, None]:
        """Count an answer for as long as the block lasts, and make room for it.

        Raises `Unavailable` when there is no room and no answer has waited long enough. An answer
        that `must` be sent is never refused: what it reports has been done.
        """
        self._make_room(tenant, body, must=must)
        answer = UnsentAnswer(tenant, body, close, self._clock())
        self._answers[answer] = None
        size, count = self._bodies.get(id(body), (len(body), 0))
        self._bodies[id(body)] = (size, count + 1)
        self._size += 0 if count else size
        try:
            yield answer
        finally:
            self._drop(answer)

    def note_read(self, answer: UnsentAnswer) -> None:
        """Note that the client has read a part of an answer."""
        if answer in self._answers:
            answer.read_at = self._clock()
            del self._answers[answer]
            self._answers[answer] = None

    def _drop(self, answer: UnsentAnswer) -> None:
        """Count an answer no longer. Nothing happens when it was closed before."""
        if answer not in self._answers:
            return
        del self._answers[answer]
        size, count = self._bodies.pop(id(answer.body))
        if count > 1:
            self._bodies[id(answer.body)] = (size, count - 1)
        else:
            self._size -= size

    def _make_room(self, tenant: str, body: bytes, *, must: bool) -> None:
        if id(body) in self._bodies:
            return
        while self._answers and self._size + self.other_bytes + len(body) > self.most_bytes:
            longest = self._longest_waiting(tenant)
            is_patient = self._clock() - longest.read_at < PATIENCE_SECONDS
            if longest.tenant == tenant and is_patient and not must:
                raise Unavailable(
                    f"answers that wait for their clients to read have {self._size} bytes, and "
                    f"this one has {len(body)}: more than max_stream_buffer_bytes allows. "
                    f"Read the other answers, or try again in {RETRY_SECONDS} seconds.",
                    retry_after=RETRY_SECONDS,
                    limit=self.most_bytes,
                )
            self._close(longest)

    def _longest_waiting(self, tenant: str) -> UnsentAnswer:
        """The answer that has waited longest, of the tenant that holds the most.

        Of tenants that hold the same, the one that asks for more comes first.
        """
        held: dict[str, int] = {}
        for answer in self._answers:
            held[answer.tenant] = held.get(answer.tenant, 0) + len(answer.body)
        largest = max(held, key=lambda each: (held[each], each == tenant))
        return next(answer for answer in self._answers if answer.tenant == largest)

    def _close(self, answer: UnsentAnswer) -> None:
        log.warning(
            "connection closed: its client does not read, and other answers need the memory",
            tenant=answer.tenant,
            bytes=len(answer.body),
        )
        self._drop(answer)
        answer.close()
