"""A cache of decoded logs of the runs on open pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from wopr.process.tenant_slots import run_by_size
from wopr.protocol.documents import Json, JsonObject, Unset, object_of, to_millis
from wopr.protocol.events import RunEvent
from wopr.runs.run_reader import RunReader
from wopr.store.port import StoredEvent

# Events of a log that pages show. The debug bundle contains all events.
MAX_EVENTS: Final = 20_000
# Limits of the cache over all runs. The log of the last read is always kept.
_EVENTS_KEPT: Final = 50_000
_BYTES_KEPT: Final = 16 * 1024 * 1024
_PAGE: Final = 1000
_EVENT: Final = msgspec.json.Decoder(RunEvent)


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a log, and its text for searches."""

    event: RunEvent
    at: int
    text: str

    @property
    def sequence(self) -> int:
        """The sequence of the event."""
        return self.event.sequence

    @property
    def node_id(self) -> str:
        """The node of the event; empty if it has none."""
        return "" if isinstance(self.event.node_id, Unset) else self.event.node_id

    @property
    def cause(self) -> str:
        """The id of the event that caused this event; empty if it has none."""
        return "" if isinstance(self.event.causation_id, Unset) else self.event.causation_id

    @property
    def payload(self) -> JsonObject:
        """The payload; empty if it is not an object."""
        return object_of(self.event.payload)

    @property
    def agent_id(self) -> str:
        """The agent that the payload names; empty if it names none."""
        payload = self.payload
        named: Json = payload.get("agentId") or payload.get("fromAgentId")
        named = named or object_of(payload.get("agent")).get("agentId")
        return named if isinstance(named, str) else ""


@dataclass(slots=True)
class DecodedLog:
    """The decoded log of a run so far."""

    entries: list[Entry] = field(default_factory=list[Entry])
    by_id: dict[str, Entry] = field(default_factory=dict[str, Entry])
    # The size of its events in bytes.
    size: int = 0

    def add(self, entry: Entry) -> None:
        """Append an event."""
        self.entries.append(entry)
        self.by_id[entry.event.event_id] = entry

    def until(self, sequence: int) -> DecodedLog:
        """Return the log up to this event. It does not grow with the cached log."""
        return DecodedLog(self.entries[: sequence + 1], self.by_id, self.size)

    @property
    def is_cut(self) -> bool:
        """Return whether the log may have more events than pages show."""
        return len(self.entries) >= MAX_EVENTS


async def _is_current(kept: DecodedLog, run_reader: RunReader, tenant: str, run_id: str) -> bool:
    """Return whether the cached log is a prefix of the stored log.

    It is not if an observed run was rebuilt.
    """
    if not kept.entries:
        return True
    known = kept.entries[-1].event
    return [known.event_id] == [
        _EVENT.decode(event.body).event_id
        for event in await run_reader.events(tenant, run_id, known.sequence, 1)
    ]


class DecodedLogs:
    """Caches the logs of a few runs, and reads only their new events."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], DecodedLog] = OrderedDict()

    async def read(self, run_reader: RunReader, tenant: str, run_id: str) -> DecodedLog:
        """Return the log of a run. The caller has checked that the run is the tenant's."""
        kept = self._kept.setdefault((tenant, run_id), DecodedLog())
        if not await _is_current(kept, run_reader, tenant, run_id):
            kept = self._kept[tenant, run_id] = DecodedLog()
        self._kept.move_to_end((tenant, run_id))
        while not kept.is_cut:
            start = len(kept.entries)
            page = await run_reader.events(tenant, run_id, start, _PAGE)
            size = sum(len(event.body) for event in page)
            for entry in await run_by_size(size, partial(_entries, page)):
                # Another reader may have added the same events meanwhile.
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
