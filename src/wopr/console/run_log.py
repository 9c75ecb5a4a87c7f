"""The logs of the runs that are looked at now, decoded once for all who look."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from wopr.console.json_values import object_of
from wopr.protocol.documents import Json, JsonObject, Unset
from wopr.protocol.events import RunEvent
from wopr.protocol.times import to_millis
from wopr.runtime.heavy_reads import off_loop
from wopr.runtime.readers import Readers
from wopr.store.port import StoredEvent

# So much of a log is drawn; the rest of a longer one is in its export.
MOST_EVENTS: Final = 20_000
# Events that are kept decoded, over all runs but the one that is read now.
_EVENTS_KEPT: Final = 50_000
_BYTES_KEPT: Final = 16 * 1024 * 1024
_PAGE: Final = 1000
_EVENT: Final = msgspec.json.Decoder(RunEvent)


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a log, and the text that a search looks through."""

    event: RunEvent
    at: int
    text: str

    @property
    def sequence(self) -> int:
        """Its place in the log."""
        return self.event.sequence

    @property
    def node_id(self) -> str:
        """The node that it belongs to, or nothing."""
        return "" if isinstance(self.event.node_id, Unset) else self.event.node_id

    @property
    def cause(self) -> str:
        """The id of the event that caused it, or nothing."""
        return "" if isinstance(self.event.causation_id, Unset) else self.event.causation_id

    @property
    def payload(self) -> JsonObject:
        """What it says; empty when that is no object."""
        return object_of(self.event.payload)

    @property
    def agent_id(self) -> str:
        """The agent that it speaks of, or nothing."""
        payload = self.payload
        named: Json = payload.get("agentId") or payload.get("fromAgentId")
        named = named or object_of(payload.get("agent")).get("agentId")
        return named if isinstance(named, str) else ""


@dataclass(slots=True)
class RunLog:
    """A log so far."""

    entries: list[Entry] = field(default_factory=list[Entry])
    by_id: dict[str, Entry] = field(default_factory=dict[str, Entry])
    # The bytes of its events as they are stored.
    size: int = 0

    def add(self, entry: Entry) -> None:
        """Take up one more event."""
        self.entries.append(entry)
        self.by_id[entry.event.event_id] = entry

    def until(self, sequence: int) -> RunLog:
        """The log up to this event, for a reader that must not see it grow."""
        return RunLog(self.entries[: sequence + 1], self.by_id, self.size)

    @property
    def is_cut(self) -> bool:
        """Whether there may be more than is shown."""
        return len(self.entries) >= MOST_EVENTS


async def _continues(kept: RunLog, readers: Readers, tenant: str, run_id: str) -> bool:
    """Whether the run still has the log that was kept: an observed one may have come anew."""
    if not kept.entries:
        return True
    known = kept.entries[-1].event
    return [known.event_id] == [
        _EVENT.decode(event.body).event_id
        for event in await readers.events(tenant, run_id, known.sequence, 1)
    ]


class RunLogs:
    """Keeps the logs of a few runs, and reads only what is new of them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], RunLog] = OrderedDict()

    async def read(self, readers: Readers, tenant: str, run_id: str) -> RunLog:
        """The log of a run that the caller has found to be the tenant's."""
        kept = self._kept.setdefault((tenant, run_id), RunLog())
        if not await _continues(kept, readers, tenant, run_id):
            kept = self._kept[tenant, run_id] = RunLog()
        self._kept.move_to_end((tenant, run_id))
        while not kept.is_cut:
            start = len(kept.entries)
            page = await readers.events(tenant, run_id, start, _PAGE)
            size = sum(len(event.body) for event in page)
            for entry in await off_loop(size, partial(_entries, page)):
                # Another reader may have taken up the same page meanwhile.
                if entry.sequence == len(kept.entries):
                    kept.add(entry)
                    kept.size += len(entry.text)
            if len(page) < _PAGE:
                break
        self._make_room()
        return kept

    def _make_room(self) -> None:
        total = sum(len(log.entries) for log in self._kept.values())
        size = sum(log.size for log in self._kept.values())
        while (total > _EVENTS_KEPT or size > _BYTES_KEPT) and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            total -= len(dropped.entries)
            size -= dropped.size


def entry_of(body: bytes) -> Entry:
    """Decode an event."""
    event = _EVENT.decode(body)
    return Entry(event, to_millis(event.timestamp), body.decode("utf-8", "replace").lower())


def _entries(page: Sequence[StoredEvent]) -> list[Entry]:
    return [entry_of(event.body) for event in page]
