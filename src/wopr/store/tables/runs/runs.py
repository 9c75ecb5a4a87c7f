"""Runs: the reads and changes that both databases share.

Each database has its own `append`, and its own reads of a run's row and log, which are the hot
path.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wopr.protocol.observed_ids import is_observed_run
from wopr.store.port import Artifact, Batch, RunFilter, RunPage, StoredEvent
from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Row, Variants, variants
from wopr.store.tables.runs.listing import listing, run_page

# The priority of a wake-up whose effect a person waits for. Higher numbers come first.
URGENT = 10

# The events whose bodies contain the id: the event itself, and others that may refer to it. An
# index of event ids would slow down every append, and such reads are rare.
_MENTIONS = Variants(
    sqlite="""
SELECT e.sequence, e.type, e.body
FROM runs r CROSS JOIN events e ON e.run_id = r.run_id
WHERE r.run_id = ? AND r.tenant = ? AND e.sequence >= ? AND instr(e.body, ?) > 0
ORDER BY e.sequence LIMIT ?
""",
    postgres="""
SELECT sequence, type, body FROM events
WHERE run_id = ? AND tenant = ? AND sequence >= ? AND position(? IN body) > 0
ORDER BY sequence LIMIT ?
""",
)
_PAGE_OF_MENTIONS = 20

_SET_COMMAND = """
UPDATE runs SET wish = ?, wake_at = ?
WHERE run_id = ? AND tenant = ? AND ended_at IS NULL AND wish IS NULL
"""
# PostgreSQL also wakes the process that holds the run.
_SET_PENDING_COMMAND = Variants(
    sqlite=_SET_COMMAND,
    postgres=f"""
WITH changed AS ({_SET_COMMAND} RETURNING tenant, run_id, holder)
SELECT wake_run(tenant, run_id, holder, {URGENT}) FROM changed
""",
)

# On SQLite the run's row has the tenant of its artifacts.
_ARTIFACT_COLUMNS = "a.artifact_id, a.node_id, a.artifact_type, a.created_at, a.body"
_ARTIFACT = variants(
    lambda dialect: (
        f"""
SELECT {_ARTIFACT_COLUMNS}
FROM runs r {dialect.ordered_join} artifacts a ON a.run_id = r.run_id
WHERE r.run_id = ? AND r.tenant = ? AND a.artifact_id = ?
"""
    )
)
# PostgreSQL has several rows for each tenant, so that appends do not wait for each other.
_ACTIVE_RUNS = """
SELECT CAST(coalesce(sum(runs), 0) AS bigint) FROM active_runs WHERE tenant = ?
"""
_EXPIRED = "SELECT 1 FROM expired_runs WHERE tenant = ? AND run_id = ?"


class RunTable(Table):
    """The part of `RunLog` in SQL that both databases share."""

    async def event(self, tenant: str, run_id: str, event_id: str) -> StoredEvent | None:
        """Return the event with that id."""
        needle, start = msgspec.json.encode(event_id), 0
        while rows := await self._sql.read_many(
            tenant, _MENTIONS, (run_id, tenant, start, needle, _PAGE_OF_MENTIONS)
        ):
            if found := find_event(rows, event_id):
                return found
            start = rows[-1][0] + 1
        return None

    async def runs(
        self, tenant: str, where: RunFilter, after: tuple[int, str] | None, limit: int
    ) -> RunPage:
        """List a page of runs, newest first, by keyset."""
        # One more than the limit shows whether there is a next page.
        sql, values = listing(self._sql.dialect, tenant, where, after, limit + 1)
        return run_page(await self._sql.read_many(tenant, sql, values), limit)

    async def set_pending_command(self, tenant: str, run_id: str, body: bytes, now: int) -> bool:
        """Store a command for an unfinished run that has no pending command, and wake the run."""
        return await self._sql.change(tenant, _SET_PENDING_COMMAND, (body, now, run_id, tenant)) > 0

    async def active_runs(self, tenant: str) -> int:
        """Return how many runs of the tenant have not ended."""
        [(count,)] = await self._sql.read_few(tenant, _ACTIVE_RUNS, (tenant,))
        return int(count)

    async def artifact(self, tenant: str, run_id: str, artifact_id: str) -> Artifact | None:
        """Return an artifact of the run."""
        rows = await self._sql.read_few(tenant, _ARTIFACT, (run_id, tenant, artifact_id))
        return _artifact(rows[0]) if rows else None

    async def is_expired(self, tenant: str, run_id: str) -> bool:
        """Return whether retention deleted this run of the tenant."""
        return bool(await self._sql.read_few(tenant, _EXPIRED, (tenant, run_id)))


class _EventId(msgspec.Struct, rename="camel"):
    """The id of an event, without its other members."""

    event_id: str = ""


_event_id = msgspec.json.Decoder(_EventId)


def find_event(rows: Sequence[Row], event_id: str) -> StoredEvent | None:
    """Return the event with that id from rows of sequence, type and body."""
    for sequence, kind, body in rows:
        if _event_id.decode(body).event_id == event_id:
            return StoredEvent(sequence=sequence, type=kind, body=body)
    return None


def check_batch(batch: Batch) -> None:
    """Raise `ValueError` unless the batch's events continue from `first` to its row's sequence."""
    after = batch.first + len(batch.events)
    if batch.run.last_sequence != after - 1:
        raise ValueError(f"last_sequence must be {after - 1}, not {batch.run.last_sequence}")
    if [event.sequence for event in batch.events] != list(range(batch.first, after)):
        raise ValueError(f"the batch's events must be numbered from {batch.first} on, without gaps")
    if not after:
        raise ValueError("the batch that creates a run must have at least one event")
    if any(suspension.run_id != batch.run.run_id for suspension in batch.suspends):
        raise ValueError("a batch can only suspend its own run")


def counts_as_active(batch: Batch) -> bool:
    """Return whether a batch creates a run that counts as an active run of its tenant."""
    run = batch.run
    return batch.first == 0 and run.ended_at is None and not is_observed_run(run.run_id)


def _artifact(row: Row) -> Artifact:
    return Artifact(
        artifact_id=row[0], node_id=row[1], artifact_type=row[2], created_at=row[3], body=row[4]
    )
