"""Reads runs: snapshots, pages of events, and live streams without a gap or a duplicate."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from wopr.engine.snapshot import snapshot
from wopr.engine.state import RunState
from wopr.process.tenant_slots import INLINE_BYTES, LARGE_RUN_BYTES, HeavyReads, run_by_size
from wopr.protocol.documents import UNSET, JsonObject, Unset, encode, to_iso
from wopr.protocol.errors import NotFound
from wopr.protocol.events import RUN_TERMINAL_TYPES
from wopr.protocol.runs import TERMINAL, ChildRun, MissingCode, Quarantine, RunSnapshot, RunStatus
from wopr.runs.advance import Advancer
from wopr.runs.event_bus import Bus, Notice, SnapshotBody
from wopr.runs.interrupts.inbox import make_token, may_use_token, request_payload
from wopr.runs.large_values import LargeValues
from wopr.store.port import RunFilter, RunRow, StoredEvent
from wopr.store.port.runs import split_code

PAGE = 500
# A page of a stream ends with the event that reaches this size.
PAGE_BYTES = 64 * 1024
CHILDREN_SHOWN = 200
# Runs that are remembered as large.
MAX_LARGE_RUNS = 10_000


def missing_code(row: RunRow) -> list[MissingCode]:
    """Return the nodes of a run that wait for a process with their code."""
    needed = ((node_id, *split_code(code)) for node_id, code in row.missing_types.items())
    return [
        MissingCode(node_id=node_id, type_id=type_id, tools=tools or UNSET)
        for node_id, type_id, tools in needed
    ]


def quarantine(row: RunRow) -> Quarantine | Unset:
    """Return the quarantine of a run, or `UNSET`."""
    if row.quarantined_at is None or row.ended_at is not None:
        return UNSET
    return Quarantine(since=to_iso(row.quarantined_at), crashes=row.crashes)


class RunReader:
    """Reads runs and writes nothing.

    `catch_up` makes an observed run ready to be read. `heavy_reads` limits the requests that read
    large runs at the same time.
    """

    def __init__(
        self,
        advancer: Advancer,
        bus: Bus,
        catch_up: Callable[[str, str], Awaitable[None]],
        heavy_reads: HeavyReads,
    ) -> None:
        self._catch_up = catch_up
        self.heavy_reads = heavy_reads
        # Runs with much data, the newest read last. The first read of a run is not limited.
        self._large: OrderedDict[str, None] = OrderedDict()
        self._advancer = advancer
        self._store = advancer.journal.store
        self._bus = bus

    async def row(self, tenant: str, run_id: str) -> RunRow:
        """Return the run's row. Raises `NotFound` for unknown runs and runs of other tenants."""
        row = await self._store.run(tenant, run_id)
        if row is None:
            raise NotFound(f"there is no run {run_id!r}")
        return row

    async def snapshot(
        self, tenant: str, run_id: str, *, token_key: bytes | None = None
    ) -> SnapshotBody:
        """Return the encoded snapshot of a run, with an interrupt token if `token_key` is given."""
        row = await self.row(tenant, run_id)
        if row.snapshot is not None:
            self._record_size(run_id, len(row.snapshot))
            return SnapshotBody(row.snapshot, row.last_sequence)
        view, size = await self._fold(tenant, row, token_key=token_key)
        interrupt = view.interrupt
        has_token = not isinstance(interrupt, Unset) and "interruptToken" in interrupt
        body = (
            encode(view) if size < INLINE_BYTES else await run_by_size(size, partial(encode, view))
        )
        return SnapshotBody(body, int(view.last_sequence or 0), has_token)

    async def snapshot_with_slot(
        self,
        tenant: str,
        run_id: str,
        *,
        token_key: bytes | None = None,
        always_waits: bool = False,
    ) -> SnapshotBody:
        """Return the encoded snapshot of a run. Large runs wait for a slot of `heavy_reads`.

        Raises `Unavailable` when too many requests of the tenant wait, unless it `always_waits`.
        """
        if run_id not in self._large:
            found = await self.snapshot(tenant, run_id, token_key=token_key)
            if len(found.body) < LARGE_RUN_BYTES:
                return found
            # Requests that wait for a slot must not keep these bytes.
            del found
        async with self.heavy_reads.slot(tenant, always_waits=always_waits):
            return await self.snapshot(tenant, run_id, token_key=token_key)

    def _record_size(self, run_id: str, size: int) -> None:
        if size < LARGE_RUN_BYTES:
            return
        self._large[run_id] = None
        self._large.move_to_end(run_id)
        if len(self._large) > MAX_LARGE_RUNS:
            self._large.popitem(last=False)

    async def shared_snapshot(self, tenant: str, run_id: str, sequence: int) -> SnapshotBody:
        """Return the snapshot at that sequence or later. Readers of one run share its bytes."""
        topic = self._bus.topic(run_id)
        known = None if topic is None else topic.snapshot
        if known is not None and known.sequence >= sequence:
            return known
        found = await self.snapshot(tenant, run_id)
        if topic is not None:
            topic.snapshot = found
        return found

    async def fold(
        self,
        tenant: str,
        row: RunRow,
        *,
        token_key: bytes | None = None,
        may_lag: bool = False,
    ) -> RunSnapshot:
        """Return the snapshot of a run from its log.

        With `may_lag` the events of an append in progress may be missing. The bus wakes readers
        when the append is done.
        """
        return (await self._fold(tenant, row, token_key=token_key, may_lag=may_lag))[0]

    async def _fold(
        self,
        tenant: str,
        row: RunRow,
        *,
        token_key: bytes | None = None,
        may_lag: bool = False,
    ) -> tuple[RunSnapshot, int]:
        """Return the snapshot of a run, and the bytes of its log and of its large values."""
        run_id = row.run_id
        run = await self._advancer.active.load(tenant, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        state, large_values = run.state, run.large_values
        if state.next_sequence <= row.last_sequence and not (may_lag and run.lock.locked()):
            # The state in memory is older than a commit that the reader may have seen.
            state, large_values = await self._advancer.journal.newest_state(run)
        children = await self._children(tenant, run_id) if state.children else ()
        size = run.log_bytes
        self._record_size(run_id, size)
        make = partial(self._view, row, state, large_values, children, token_key)
        view = make() if size < INLINE_BYTES else await run_by_size(size, make)
        waiting = next((c for c in children if c.status.startswith("waiting-")), None)
        if waiting is None or view.status != "running":
            return view, size
        # A run whose child waits for a person has the status of the child.
        return replace(view, status=waiting.status, current_node_id=waiting.node_id), size

    def _view(
        self,
        row: RunRow,
        state: RunState,
        large_values: LargeValues,
        children: Sequence[ChildRun],
        token_key: bytes | None,
    ) -> RunSnapshot:
        return large_values.snapshot_with_references(
            replace(
                snapshot(state, children),
                interrupt=self._pending_interrupt(state, token_key),
                waiting_for_code=missing_code(row) or UNSET,
                quarantine=quarantine(row),
            )
        )

    def _pending_interrupt(self, state: RunState, token_key: bytes | None) -> JsonObject | Unset:
        """Return the pending interrupt of a run, with a token if `token_key` is given."""
        for node_id, node in state.nodes.items():
            interrupt = node.interrupt
            if node.status != "suspended" or interrupt is None or state.is_terminal:
                continue
            pending: JsonObject = {
                "kind": interrupt.kind,
                "nodeId": node_id,
                "interruptId": interrupt.interrupt_id,
                "payload": request_payload(interrupt),
            }
            if token_key is not None and may_use_token(state, node_id, interrupt):
                now = self._advancer.journal.now()
                token = make_token(state, node_id, interrupt, now, token_key)
                pending |= {"interruptToken": token, "callbackUrl": f"/v1/interrupts/{token}"}
            return pending
        return UNSET

    async def _children(self, tenant: str, run_id: str) -> list[ChildRun]:
        where = RunFilter(parent_run_id=run_id)
        page = await self._store.runs(tenant, where, None, CHILDREN_SHOWN)
        return [
            ChildRun(
                run_id=row.run_id,
                status=await self._child_status(tenant, row),
                node_id=row.parent_node_id or "",
                workflow_id=row.workflow_id,
            )
            for row in reversed(page.runs)
        ]

    async def _child_status(self, tenant: str, row: RunRow) -> RunStatus:
        """Return the status of a child, or that of a grandchild for which it waits."""
        if row.status == "running":
            return (await self.fold(tenant, row)).status
        status: RunStatus = row.status  # type: ignore[assignment]  # as the fold gave it
        return status

    async def events(
        self, tenant: str, run_id: str, start: int, limit: int = PAGE
    ) -> list[StoredEvent]:
        """Return a page of the log."""
        return await self._store.read(tenant, run_id, start, limit)

    async def all_events(self, tenant: str, run_id: str) -> AsyncIterator[StoredEvent]:
        """Yield the events of the log so far."""
        start = 0
        while page := await self._store.read(tenant, run_id, start, PAGE):
            for event in page:
                yield event
            start = page[-1].sequence + 1

    async def log_document(
        self, tenant: str, run_id: str, start: int, wanted: Callable[[StoredEvent], bool]
    ) -> bytes:
        """Return the wanted events from `start` on as one document. Large logs wait for a slot.

        Raises `Unavailable` when too many requests of the tenant wait.
        """
        if run_id not in self._large:
            found = await self._bodies(tenant, run_id, start, wanted, LARGE_RUN_BYTES)
            if found is not None:
                return _as_document(found)
            self._record_size(run_id, LARGE_RUN_BYTES)
        async with self.heavy_reads.slot(tenant):
            bodies = await self._bodies(tenant, run_id, start, wanted, None) or []
            return await run_by_size(sum(map(len, bodies)), partial(_as_document, bodies))

    async def _bodies(
        self,
        tenant: str,
        run_id: str,
        start: int,
        wanted: Callable[[StoredEvent], bool],
        most_bytes: int | None,
    ) -> list[bytes] | None:
        """Return the wanted events from `start` on; None when the rest of the log is too large."""
        bodies: list[bytes] = []
        size = 0
        while page := await self._store.read(tenant, run_id, start, PAGE, most_bytes=INLINE_BYTES):
            bodies += [event.body for event in page if wanted(event)]
            start = page[-1].sequence + 1
            size += sum(len(event.body) for event in page)
            if most_bytes is not None and size >= most_bytes:
                return None
            if size >= INLINE_BYTES:
                # Other tasks run between the pages of a long log.
                await anyio.lowlevel.checkpoint()
        return bodies

    async def wait_for_events(
        self, tenant: str, run_id: str, start: int, seconds: float, newest: int = -1
    ) -> list[StoredEvent]:
        """Return events from `start` on. Wait for the first until the run ends or the host stops.

        There are at most 500 events of about 256 KiB. `newest` is the last sequence that the caller
        has seen: the store is read up to it. `seconds` limits only the wait for new events, not the
        reads of the store.
        """
        deadline = anyio.current_time() + seconds
        with self._bus.subscribe(run_id) as topic:
            while True:
                changed = topic.changed
                await self._catch_up(tenant, run_id)
                events = await self._page_until(tenant, run_id, start, newest)
                if events or self._bus.is_closed or anyio.current_time() >= deadline:
                    return events
                row = await self.row(tenant, run_id)
                if row.status in TERMINAL:
                    # The run may have ended after its events were read.
                    return await self._page_until(tenant, run_id, start, row.last_sequence)
                with anyio.CancelScope(deadline=deadline):
                    await changed.wait()

    async def _page_until(
        self, tenant: str, run_id: str, start: int, newest: int
    ) -> list[StoredEvent]:
        events = await self._store.read(tenant, run_id, start, PAGE, most_bytes=INLINE_BYTES)
        while events and events[-1].sequence < newest:
            start, count = events[-1].sequence + 1, PAGE - len(events)
            left = INLINE_BYTES - sum(len(event.body) for event in events)
            if left <= 0 or count <= 0:
                break
            page = await self._store.read(tenant, run_id, start, count, most_bytes=left)
            if not page:
                break
            events += page
        return events

    async def follow(
        self, tenant: str, run_id: str, start: int, heartbeat: float
    ) -> AsyncIterator[list[StoredEvent] | Notice]:
        """Yield stored events, then live events and notices, until the terminal event.

        An empty list is a heartbeat after `heartbeat` seconds without events.
        """
        with self._bus.subscribe(run_id) as topic:
            seen = topic.notice_count
            # Whether the bus has all events. The store is read first, and again after a heartbeat.
            bus_is_complete = False
            heartbeat_at = anyio.current_time() + heartbeat
            while True:
                changed = topic.changed
                await self._catch_up(tenant, run_id)
                events = topic.since(start)
                bus_is_complete = bus_is_complete and events is not None
                if not events and bus_is_complete:
                    events = []
                elif not events:
                    events = topic.share_large(await self._page(tenant, run_id, start))
                notices, seen = topic.notices(seen), topic.notice_count
                for item in _in_order(events, notices):
                    yield item
                if events:
                    start = events[-1].sequence + 1
                    if events[-1].type in RUN_TERMINAL_TYPES:
                        return
                if events or notices:
                    heartbeat_at = anyio.current_time() + heartbeat
                    continue
                if not bus_is_complete and await self._is_over(tenant, run_id, start):
                    return
                bus_is_complete = False
                # A wake-up without events must not delay the heartbeat.
                with anyio.move_on_after(heartbeat_at - anyio.current_time()):
                    await changed.wait()
                    bus_is_complete = True
                if not bus_is_complete:
                    yield []
                    heartbeat_at = anyio.current_time() + heartbeat

    async def _page(self, tenant: str, run_id: str, start: int) -> list[StoredEvent]:
        """Return a page for a stream. Its size is bounded."""
        page = await self._store.read(tenant, run_id, start, PAGE, most_bytes=PAGE_BYTES)
        if page:
            # Other tasks run between the pages of a fast reader.
            await anyio.lowlevel.checkpoint()
        return page

    async def _is_over(self, tenant: str, run_id: str, start: int) -> bool:
        row = await self._store.run(tenant, run_id)
        return row is None or (row.status in TERMINAL and start > row.last_sequence)


def _as_document(bodies: Sequence[bytes]) -> bytes:
    return b'{"events":[%b]}' % b",".join(bodies)


def _in_order(events: list[StoredEvent], notices: list[Notice]) -> list[list[StoredEvent] | Notice]:
    """Order notices after the events that they may refer to, and before the terminal event."""
    is_over = bool(events) and events[-1].type in RUN_TERMINAL_TYPES
    cut = len(events) - 1 if is_over and notices else len(events)
    items: list[list[StoredEvent] | Notice] = [events[:cut], *notices, events[cut:]]
    return [item for item in items if item]
