"""Frames of server-sent events. All readers of an event share its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from wopr.http.limits import CHUNK_BYTES
from wopr.protocol.documents import JsonObject, encode
from wopr.protocol.streams import VALUES_EXTRA, includes_event, is_update
from wopr.runs.event_bus import Notice
from wopr.runs.run_reader import RunReader
from wopr.store.port import StoredEvent

_NOTICE_MODES = frozenset({"updates", "debug"})
_PAYLOAD = msgspec.json.Decoder(type=JsonObject)
# The frame of an event up to this size is cached for other readers. A larger one is never copied.
SMALL_BYTES = 8 * 1024
_END = b"\n\n"


@lru_cache(maxsize=1024)
def small_event_frame(event: StoredEvent) -> bytes:
    """Return the frame of a small event, as stored."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (
        event.sequence,
        event.type.encode(),
        event.body,
    )


def join_chunks(pieces: Iterable[bytes]) -> list[bytes]:
    """Join small pieces into chunks of a bounded size; a larger piece stays as it is."""
    found: list[bytes] = []
    small: list[bytes] = []
    size = 0
    for piece in pieces:
        if small and size + len(piece) > CHUNK_BYTES:
            found.append(b"".join(small))
            small, size = [], 0
        if len(piece) > CHUNK_BYTES:
            found.append(piece)
        else:
            small.append(piece)
            size += len(piece)
    if small:
        found.append(small[0] if len(small) == 1 else b"".join(small))
    return found


class Framer:
    """Turns a run's events into the frames of one reader's stream modes."""

    def __init__(
        self, run_reader: RunReader, tenant: str, run_id: str, modes: frozenset[str]
    ) -> None:
        self._run_reader = run_reader
        self._tenant = tenant
        self._run_id = run_id
        self._modes = modes

    def carries(self, event: StoredEvent) -> bool:
        """Return whether this reader receives the event in some form."""
        if "values" in self._modes:
            return is_update(event.type) or event.type in VALUES_EXTRA
        chunk = "messages" in self._modes and event.type == "output.chunk"
        return chunk or includes_event(self._modes, event.type)

    async def frames(self, events: list[StoredEvent]) -> list[bytes]:
        """Return the frames of events; empty if this reader receives none of them."""
        wanted = [event for event in events if self.carries(event)]
        if not wanted:
            return []
        if "values" in self._modes:
            return await self._snapshot(wanted[-1])
        if len(wanted) == 1:
            return self._frame(wanted[0])
        return join_chunks(piece for event in wanted for piece in self._frame(event))

    def notice_frame(self, notice: Notice) -> bytes:
        """Return the frame of a notice for readers of updates.

        It has no id, so that `Last-Event-ID` still refers to the log.
        """
        if _NOTICE_MODES.isdisjoint(self._modes):
            return b""
        return b"event: %b\ndata: %b\n\n" % (notice.event.encode(), notice.data)

    async def current_snapshot(self) -> list[bytes]:
        """Return the first frame of a resumed `values` reader: the current snapshot."""
        if "values" not in self._modes:
            return []
        newest = await self._run_reader.row(self._tenant, self._run_id)
        page = await self._run_reader.events(self._tenant, self._run_id, newest.last_sequence, 1)
        return await self._snapshot(page[-1]) if page else []

    def batch_frame(self, events: list[StoredEvent]) -> list[bytes]:
        """Return one frame for many events, with the highest sequence as its id."""
        pieces = [b"id: %d\nevent: batch\ndata: [" % events[-1].sequence]
        for event in events:
            pieces += (event.body, b",")
        pieces[-1] = b"]\n\n"
        return join_chunks(pieces)

    def _frame(self, event: StoredEvent) -> list[bytes]:
        if event.type == "output.chunk" and "debug" not in self._modes:
            payload = encode(_PAYLOAD.decode(event.body)["payload"])
            return [b"id: %d\nevent: ai.message.chunk\ndata: %b\n\n" % (event.sequence, payload)]
        if len(event.body) <= SMALL_BYTES:
            return [small_event_frame(event)]
        head = b"id: %d\nevent: %b\ndata: " % (event.sequence, event.type.encode())
        return [head, event.body, _END]

    async def _snapshot(self, event: StoredEvent) -> list[bytes]:
        found = await self._run_reader.shared_snapshot(self._tenant, self._run_id, event.sequence)
        cause = _PAYLOAD.decode(event.body)
        document = {
            "eventId": f"{cause['eventId']}:snapshot",
            "runId": self._run_id,
            "type": "state.snapshot",
            "timestamp": cause["timestamp"],
            "sequence": event.sequence,
        }
        # The snapshot is the last member, so that its bytes are not copied.
        head = b"id: %d\nevent: state.snapshot\ndata: %b" % (event.sequence, encode(document)[:-1])
        return join_chunks((head, b',"payload":', found.body, b"}\n\n"))
