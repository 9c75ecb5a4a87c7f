"""Reading runs: snapshots, pages of events, and live following without a gap or a duplicate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import anyio
from msgspec.structs import replace

from wopr.engine.snapshot import snapshot
from wopr.engine.state import RunState
from wopr.protocol.documents import UNSET, JsonObject, Unset, encode
from wopr.protocol.errors import NotFound
from wopr.protocol.events import RUN_TERMINAL_TYPES
from wopr.protocol.runs import TERMINAL, ChildRun, MissingCode, RunSnapshot, RunStatus
from wopr.runtime.advance import Advancer
from wopr.runtime.bus import Bus, Notice
from wopr.runtime.inbox import may_use_token, mint, request
from wopr.store.port import RunFilter, RunRow, StoredEvent
from wopr.store.port.runs import split_code

PAGE = 500
CHILDREN_SHOWN = 200


@dataclass(frozen=True, slots=True)
class SnapshotBody:
    """An encoded snapshot and the sequence that it is the fold of."""

    body: bytes
    sequence: int
    has_token: bool = False


def missing_code(row: RunRow) -> list[MissingCode]:
    """The nodes that a run waits for a process with the code of."""
    needed = ((node_id, *split_code(code)) for node_id, code in row.missing_types.items())
    return [
        MissingCode(node_id=node_id, type_id=type_id, tools=tools or UNSET)
        for node_id, type_id, tools in needed
    ]


class Readers:
    """Everything that reads runs and writes nothing.

    `catch_up` makes a run that was observed ready to be read.
    """

    def __init__(
        self, advancer: Advancer, bus: Bus, catch_up: Callable[[str, str], Awaitable[None]]
    ) -> None:
        self._catch_up = catch_up
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
            return SnapshotBody(row.snapshot, row.last_sequence)
        view = await self.fold(tenant, row, token_key=token_key)
        waits = view.interrupt
        has_token = not isinstance(waits, Unset) and "interruptToken" in waits
        return SnapshotBody(encode(view), int(view.last_sequence or 0), has_token)

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
        run_id = row.run_id
        run = await self._advancer.load(tenant, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        state = run.state
        if state.next_sequence <= row.last_sequence and not (may_lag and run.lock.locked()):
            # What this process holds is behind a commit that the reader may have seen already.
            state = await self._advancer.journal.catch_up(state)
        waits, missing = self._wait(state, token_key), missing_code(row) or UNSET
        if not state.children:
            return replace(snapshot(state), interrupt=waits, waiting_for_code=missing)
        children = await self._children(tenant, run_id)
        view = replace(snapshot(state, children), interrupt=waits, waiting_for_code=missing)
        waiting = next((c for c in children if c.status.startswith("waiting-")), None)
        if waiting is None or view.status != "running":
            return view
        # While it is blocked on a child that waits, a run shows that it waits too.
        return replace(view, status=waiting.status, current_node_id=waiting.node_id)

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

    async def wait_for_events(
        self, tenant: str, run_id: str, start: int, seconds: float
    ) -> list[StoredEvent]:
        """Events from `start` on; waits for the first one unless the run ends or the host stops.

        Only the waiting is limited: what is on the log is read however long the store takes.
        """
        deadline = anyio.current_time() + seconds
        with self._bus.subscribe(run_id) as topic:
            while True:
                news = topic.news
                await self._catch_up(tenant, run_id)
                events = await self._store.read(tenant, run_id, start, PAGE)
                if events or self._bus.is_closed or anyio.current_time() >= deadline:
                    return events
                if (await self.row(tenant, run_id)).status in TERMINAL:
                    return events
                with anyio.CancelScope(deadline=deadline):
                    await news.wait()

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
                if not events:
                    events = [] if is_sure else await self._store.read(tenant, run_id, start, PAGE)
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

    async def _is_over(self, tenant: str, run_id: str, start: int) -> bool:
        row = await self._store.run(tenant, run_id)
        return row is None or (row.status in TERMINAL and start > row.last_sequence)


def _in_order(events: list[StoredEvent], notices: list[Notice]) -> list[list[StoredEvent] | Notice]:
    """Notices go behind the events that they may speak of, and before the one that ends all."""
    is_over = bool(events) and events[-1].type in RUN_TERMINAL_TYPES
    cut = len(events) - 1 if is_over and notices else len(events)
    stretches: list[list[StoredEvent] | Notice] = [events[:cut], *notices, events[cut:]]
    return [piece for piece in stretches if piece]
