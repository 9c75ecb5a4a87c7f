"""Reading runs: snapshots, pages of events, and live following without a gap or a duplicate."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from wopr.engine.snapshot import snapshot
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, JsonObject, Unset, encode
from wopr.protocol.errors import NotFound
from wopr.protocol.events import RUN_TERMINAL_TYPES
from wopr.protocol.runs import TERMINAL, ChildRun, MissingCode, Quarantine, RunSnapshot, RunStatus
from wopr.protocol.times import to_iso
from wopr.runtime.advance import Advancer
from wopr.runtime.bus import Bus, Notice, SnapshotBody
from wopr.runtime.heavy_reads import LARGE_BYTES, NEAR_BYTES, HeavyReads, off_loop
from wopr.runtime.inbox import may_use_token, mint, request
from wopr.runtime.spilling import Spilled
from wopr.store.port import RunFilter, RunRow, StoredEvent
from wopr.store.port.runs import split_code

PAGE = 500
# A page of a stream ends with the event that brings it to this size.
PAGE_BYTES = 64 * 1024
CHILDREN_SHOWN = 200
# Runs that are remembered as large.
MOST_LARGE = 10_000


def missing_code(row: RunRow) -> list[MissingCode]:
    """The nodes that a run waits for a process with the code of."""
    needed = ((node_id, *split_code(code)) for node_id, code in row.missing_types.items())
    return [
        MissingCode(node_id=node_id, type_id=type_id, tools=tools or UNSET)
        for node_id, type_id, tools in needed
    ]


def quarantine(row: RunRow) -> Quarantine | Unset:
    """Since when a run is in quarantine; `UNSET` when it is in none."""
    if row.quarantined_at is None or row.ended_at is not None:
        return UNSET
    return Quarantine(since=to_iso(row.quarantined_at), crashes=row.crashes)


class Readers:
    """Everything that reads runs and writes nothing.

    `catch_up` makes a run that was observed ready to be read. Requests for snapshots of large runs
    take turns of `heavy_reads`.
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
        # Runs with much data, the one that was read last at the end. What is not here is read
        # without a turn, once.
        self._large: OrderedDict[str, None] = OrderedDict()
        self._advancer = advancer
        self._store = advancer.journal.store
        self._bus = bus

    async def row(self, tenant: str, run_id: str) -> RunRow:
        """The run's row; unknown and foreign are the same."""
        row = await self._store.run(tenant, run_id)
        if row is None:
            raise NotFound(f"there is no run {run_id!r}")
        return row

    async def snapshot(
        self, tenant: str, run_id: str, *, token_key: bytes | None = None
    ) -> SnapshotBody:
        """The run as it stands, encoded; with a token for its wait where a key is given."""
        row = await self.row(tenant, run_id)
        if row.snapshot is not None:
            self._note_size(run_id, len(row.snapshot))
            return SnapshotBody(row.snapshot, row.last_sequence)
        view, size = await self._fold(tenant, row, token_key=token_key)
        waits = view.interrupt
        has_token = not isinstance(waits, Unset) and "interruptToken" in waits
        body = encode(view) if size < NEAR_BYTES else await off_loop(size, partial(encode, view))
        return SnapshotBody(body, int(view.last_sequence or 0), has_token)

    async def snapshot_in_turn(
        self, tenant: str, run_id: str, *, token_key: bytes | None = None, must: bool = False
    ) -> SnapshotBody:
        """The same, for a request that has no turn yet: large runs take one.

        Raises `Unavailable` when too many requests of the tenant wait, unless it `must` be read.
        """
        if run_id not in self._large:
            found = await self.snapshot(tenant, run_id, token_key=token_key)
            if len(found.body) < LARGE_BYTES:
                return found
            # Its bytes are given up, so that requests that wait for a turn hold none.
            del found
        async with self.heavy_reads.turn(tenant, must=must):
            return await self.snapshot(tenant, run_id, token_key=token_key)

    def _note_size(self, run_id: str, size: int) -> None:
        if size < LARGE_BYTES:
            return
        self._large[run_id] = None
        self._large.move_to_end(run_id)
        if len(self._large) > MOST_LARGE:
            self._large.popitem(last=False)

    async def shared_snapshot(self, tenant: str, run_id: str, sequence: int) -> SnapshotBody:
        """The run as it stood at that sequence or later; the readers of a stream share its bytes."""
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
        """The run as it stands, from its log.

        With `may_lag` the events of an append that this process has under way may be missing.
        Readers of the bus are told when the append is done.
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
        """The run as it stands, and the bytes of its log and of its large values."""
        run_id = row.run_id
        run = await self._advancer.load(tenant, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        state, spilled = run.state, run.spilled
        if state.next_sequence <= row.last_sequence and not (may_lag and run.lock.locked()):
            # What this process holds is behind a commit that the reader may have seen already.
            state, spilled = await self._advancer.journal.catch_up(run)
        children = await self._children(tenant, run_id) if state.children else ()
        size = run.log_bytes
        self._note_size(run_id, size)
        make = partial(self._view, row, state, spilled, children, token_key)
        view = make() if size < NEAR_BYTES else await off_loop(size, make)
        waiting = next((c for c in children if c.status.startswith("waiting-")), None)
        if waiting is None or view.status != "running":
            return view, size
        # While it is blocked on a child that waits, a run shows that it waits too.
        return replace(view, status=waiting.status, current_node_id=waiting.node_id), size

    def _view(
        self,
        row: RunRow,
        state: RunState,
        spilled: Spilled,
        children: Sequence[ChildRun],
        token_key: bytes | None,
    ) -> RunSnapshot:
        return spilled.shown(
            replace(
                snapshot(state, children),
                interrupt=self._wait(state, token_key),
                waiting_for_code=missing_code(row) or UNSET,
                quarantine=quarantine(row),
            )
        )

    def _wait(self, state: RunState, token_key: bytes | None) -> JsonObject | Unset:
        """What the run waits for; the token only for those who may answer."""
        for node_id, node in state.nodes.items():
            interrupt = node.interrupt
            if node.status != "suspended" or interrupt is None or state.is_terminal:
                continue
            shown: JsonObject = {
                "kind": interrupt.kind,
                "nodeId": node_id,
                "interruptId": interrupt.interrupt_id,
                "payload": request(interrupt),
            }
            if token_key is not None and may_use_token(state, node_id, interrupt):
                now = self._advancer.journal.now()
                token = mint(state, node_id, interrupt, now, token_key)
                shown |= {"interruptToken": token, "callbackUrl": f"/v1/interrupts/{token}"}
            return shown
        return UNSET

    async def _children(self, tenant: str, run_id: str) -> list[ChildRun]:
        where = RunFilter(parent_run_id=run_id)
        page = await self._store.runs(tenant, where, None, CHILDREN_SHOWN)
        return [
            ChildRun(
                run_id=row.run_id,
                status=await self._shown_status(tenant, row),
                node_id=row.parent_node_id or "",
                workflow_id=row.workflow_id,
            )
            for row in reversed(page.runs)
        ]

    async def _shown_status(self, tenant: str, row: RunRow) -> RunStatus:
        """A child's status, seen through to the grandchild that it waits for."""
        if row.status == "running":
            return (await self.fold(tenant, row)).status
        status: RunStatus = row.status  # type: ignore[assignment]  # as the fold gave it
        return status

    async def events(
        self, tenant: str, run_id: str, start: int, limit: int = PAGE
    ) -> list[StoredEvent]:
        """A page of the log."""
        return await self._store.read(tenant, run_id, start, limit)

    async def all_events(self, tenant: str, run_id: str) -> AsyncIterator[StoredEvent]:
        """The log so far."""
        start = 0
        while page := await self._store.read(tenant, run_id, start, PAGE):
            for event in page:
                yield event
            start = page[-1].sequence + 1

    async def log_so_far(
        self, tenant: str, run_id: str, start: int, wanted: Callable[[StoredEvent], bool]
    ) -> bytes:
        """The wanted events of the log from `start` on, as one document. Large logs take a turn.

        Raises `Unavailable` when too many requests of the tenant wait.
        """
        if run_id not in self._large:
            found = await self._bodies(tenant, run_id, start, wanted, LARGE_BYTES)
            if found is not None:
                return _joined(found)
            self._note_size(run_id, LARGE_BYTES)
        async with self.heavy_reads.turn(tenant):
            bodies = await self._bodies(tenant, run_id, start, wanted, None) or []
            return await off_loop(sum(map(len, bodies)), partial(_joined, bodies))

    async def _bodies(
        self,
        tenant: str,
        run_id: str,
        start: int,
        wanted: Callable[[StoredEvent], bool],
        most_bytes: int | None,
    ) -> list[bytes] | None:
        """The wanted events from `start` on; None when the log from there on is too large."""
        bodies: list[bytes] = []
        size = 0
        while page := await self._store.read(tenant, run_id, start, PAGE, most_bytes=NEAR_BYTES):
            bodies += [event.body for event in page if wanted(event)]
            start = page[-1].sequence + 1
            size += sum(len(event.body) for event in page)
            if most_bytes is not None and size >= most_bytes:
                return None
            if size >= NEAR_BYTES:
                # The read of a long log keeps no other task waiting.
                await anyio.lowlevel.checkpoint()
        return bodies

    async def wait_for_events(
        self, tenant: str, run_id: str, start: int, seconds: float, newest: int = -1
    ) -> list[StoredEvent]:
        """Events from `start` on; waits for the first one unless the run ends or the host stops.

        There are no more than 500, and the last is the one that brings them to 256 KiB. `newest` is
        the last sequence that the caller has seen: up to there the store is asked again for more.
        Only the waiting is limited: what is on the log is read however long the store takes.
        """
        deadline = anyio.current_time() + seconds
        with self._bus.subscribe(run_id) as topic:
            while True:
                news = topic.news
                await self._catch_up(tenant, run_id)
                events = await self._some(tenant, run_id, start, newest)
                if events or self._bus.is_closed or anyio.current_time() >= deadline:
                    return events
                row = await self.row(tenant, run_id)
                if row.status in TERMINAL:
                    # It may have ended since its events were read.
                    return await self._some(tenant, run_id, start, row.last_sequence)
                with anyio.CancelScope(deadline=deadline):
                    await news.wait()

    async def _some(self, tenant: str, run_id: str, start: int, newest: int) -> list[StoredEvent]:
        events = await self._store.read(tenant, run_id, start, PAGE, most_bytes=NEAR_BYTES)
        while events and events[-1].sequence < newest:
            start, count = events[-1].sequence + 1, PAGE - len(events)
            left = NEAR_BYTES - sum(len(event.body) for event in events)
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
        """Stored events first, then live ones and notices, until the terminal event.

        An empty list is a heartbeat: nothing came for that many seconds.
        """
        with self._bus.subscribe(run_id) as topic:
            heard = topic.noticed
            # The store is asked first, and again when nothing was heard for a while.
            is_sure = False
            quiet_at = anyio.current_time() + heartbeat
            while True:
                news = topic.news
                await self._catch_up(tenant, run_id)
                events = topic.since(start)
                is_sure = is_sure and events is not None
                if not events and is_sure:
                    events = []
                elif not events:
                    events = topic.shared(await self._page(tenant, run_id, start))
                notices, heard = topic.notices(heard), topic.noticed
                for piece in _in_order(events, notices):
                    yield piece
                if events:
                    start = events[-1].sequence + 1
                    if events[-1].type in RUN_TERMINAL_TYPES:
                        return
                if events or notices:
                    quiet_at = anyio.current_time() + heartbeat
                    continue
                if not is_sure and await self._is_over(tenant, run_id, start):
                    return
                is_sure = False
                # News may be of nothing: they must not put a heartbeat off.
                with anyio.move_on_after(quiet_at - anyio.current_time()):
                    await news.wait()
                    is_sure = True
                if not is_sure:
                    yield []
                    quiet_at = anyio.current_time() + heartbeat

    async def _page(self, tenant: str, run_id: str, start: int) -> list[StoredEvent]:
        """A page for a stream, of a bounded size however large the events are."""
        page = await self._store.read(tenant, run_id, start, PAGE, most_bytes=PAGE_BYTES)
        if page:
            # A fast reader of a long log, or one that has left, keeps no other task waiting.
            await anyio.lowlevel.checkpoint()
        return page

    async def _is_over(self, tenant: str, run_id: str, start: int) -> bool:
        row = await self._store.run(tenant, run_id)
        return row is None or (row.status in TERMINAL and start > row.last_sequence)


def _joined(bodies: Sequence[bytes]) -> bytes:
    return b'{"events":[%b]}' % b",".join(bodies)


def _in_order(events: list[StoredEvent], notices: list[Notice]) -> list[list[StoredEvent] | Notice]:
    """Notices go behind the events that they may speak of, and before the one that ends all."""
    is_over = bool(events) and events[-1].type in RUN_TERMINAL_TYPES
    cut = len(events) - 1 if is_over and notices else len(events)
    stretches: list[list[StoredEvent] | Notice] = [events[:cut], *notices, events[cut:]]
    return [piece for piece in stretches if piece]
