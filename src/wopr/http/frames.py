"""SSE frames: a stored event is framed once, and every reader gets the same bytes."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from wopr.protocol.documents import JsonObject, encode
from wopr.protocol.streams import VALUES_EXTRA, carries, is_update
from wopr.runtime.bus import Notice
from wopr.runtime.readers import Readers
from wopr.store.port import StoredEvent

_NOTICED = frozenset({"updates", "debug"})
_PAYLOAD = msgspec.json.Decoder(type=JsonObject)


@lru_cache(maxsize=1024)
def frame(event: StoredEvent) -> bytes:
    """An event as it stands in the log."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (
        event.sequence,
        event.type.encode(),
        event.body,
    )


class Framer:
    """Turns a run's events into the frames of one reader's stream modes."""

    def __init__(self, readers: Readers, tenant: str, run_id: str, modes: frozenset[str]) -> None:
        self._readers = readers
        self._tenant = tenant
        self._run_id = run_id
        self._modes = modes

    def carries(self, event: StoredEvent) -> bool:
        """Whether this reader gets the event in some form."""
        if "values" in self._modes:
            return is_update(event.type) or event.type in VALUES_EXTRA
        chunk = "messages" in self._modes and event.type == "output.chunk"
        return chunk or carries(self._modes, event.type)

    async def frames(self, events: list[StoredEvent]) -> bytes:
        """The frames of a stretch of the log; empty when none of it is for this reader."""
        wanted = [event for event in events if self.carries(event)]
        if not wanted:
            return b""
        if "values" in self._modes:
            return await self._snapshot(wanted[-1])
        return b"".join(self._frame(event) for event in wanted)

    def notice(self, notice: Notice) -> bytes:
        """A notice for readers of updates; without an id, so that a resume still names the log."""
        if _NOTICED.isdisjoint(self._modes):
            return b""
        return b"event: %b\ndata: %b\n\n" % (notice.event.encode(), notice.data)

    async def present(self) -> bytes:
        """What a resumed `values` reader gets first: the run as it stands."""
        if "values" not in self._modes:
            return b""
        newest = await self._readers.row(self._tenant, self._run_id)
        page = await self._readers.events(self._tenant, self._run_id, newest.last_sequence, 1)
        return await self._snapshot(page[-1]) if page else b""

    def batch(self, events: list[StoredEvent]) -> bytes:
        """One frame for many events, with the highest sequence as its id."""
        bodies = b",".join(event.body for event in events)
        return b"id: %d\nevent: batch\ndata: [%b]\n\n" % (events[-1].sequence, bodies)

    def _frame(self, event: StoredEvent) -> bytes:
        if event.type == "output.chunk" and "debug" not in self._modes:
            payload = encode(_PAYLOAD.decode(event.body)["payload"])
            return b"id: %d\nevent: ai.message.chunk\ndata: %b\n\n" % (event.sequence, payload)
        return frame(event)

    async def _snapshot(self, event: StoredEvent) -> bytes:
        found = await self._readers.snapshot(self._tenant, self._run_id)
        cause = _PAYLOAD.decode(event.body)
        document = {
            "eventId": f"{cause['eventId']}:snapshot",
            "runId": self._run_id,
            "type": "state.snapshot",
            "payload": msgspec.Raw(found.body),
            "timestamp": cause["timestamp"],
            "sequence": event.sequence,
        }
        return b"id: %d\nevent: state.snapshot\ndata: %b\n\n" % (
            event.sequence,
            encode(document),
        )
