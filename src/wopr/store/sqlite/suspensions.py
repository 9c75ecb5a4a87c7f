"""The part that keeps pending interrupts: written with their run's events, listed for an inbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from wopr.store.port import Suspension, SuspensionFilter, SuspensionPage
from wopr.store.port.suspensions import PENDING_BYTES
from wopr.store.sql.dialect import SQLITE
from wopr.store.sql.inbox import BODY, pending_listing, pending_page
from wopr.store.sql.rows import suspension_place
from wopr.store.sqlite.part import Part

_INSERT = """
INSERT OR REPLACE INTO suspensions (
    run_id, interrupt_id, tenant, place, node_id, workflow_id, kind, created_at, expires_at, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_MARK_RUN = "UPDATE runs SET has_suspended = 1 WHERE run_id = ? AND tenant = ?"

_DELETE = "DELETE FROM suspensions WHERE run_id = ? AND interrupt_id = ?"

_DELETE_ALL_OF_RUN = "DELETE FROM suspensions WHERE run_id = ?"

_COUNT = "SELECT count(*) FROM suspensions INDEXED BY suspensions_newest WHERE tenant = ?"


def suspend(connection: sqlite3.Connection, tenant: str, suspensions: Sequence[Suspension]) -> None:
    """Write the interrupts that a batch opens, all of one run that the caller has fenced."""
    connection.execute(_MARK_RUN, (suspensions[0].run_id, tenant))
    connection.executemany(
        _INSERT,
        [
            (
                s.run_id,
                s.interrupt_id,
                tenant,
                suspension_place(s),
                s.node_id,
                s.workflow_id,
                s.kind,
                s.created_at,
                s.expires_at,
                s.body,
            )
            for s in suspensions
        ],
    )


def resume(
    connection: sqlite3.Connection, run_id: str, interrupt_ids: Sequence[str] | None
) -> None:
    """Drop interrupts of a run that the caller has fenced: those named, or all with None."""
    if interrupt_ids is None:
        connection.execute(_DELETE_ALL_OF_RUN, (run_id,))
    elif interrupt_ids:
        connection.executemany(_DELETE, [(run_id, each) for each in interrupt_ids])


class SqliteSuspensions(Part):
    """`Suspensions` on SQLite."""

    async def pending(
        self, tenant: str, where: SuspensionFilter, after: tuple[int, str] | None, limit: int
    ) -> SuspensionPage:
        """A page of pending interrupts, newest first, by keyset."""
        # One more than asked for tells whether there is a next page.
        listing = pending_listing(SQLITE, tenant, where, after, limit + 1)
        rows = await self._reader.far_bytes(*listing, most_bytes=PENDING_BYTES, column=BODY)
        return pending_page(rows, limit)

    async def pending_count(self, tenant: str) -> int:
        """How many interrupts are pending, counted in one narrow index."""
        [(count,)] = await self._reader.far(_COUNT, (tenant,))
        return int(count)
