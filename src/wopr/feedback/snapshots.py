"""Snapshots of runs for feedback: as they are stored, or with their large values."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from wopr.process.tenant_slots import off_loop
from wopr.protocol.documents import JsonObject, encode
from wopr.protocol.errors import Unavailable
from wopr.protocol.references import MARK, referred_bytes
from wopr.runs.large_values import LargeValues
from wopr.runs.readers import Readers
from wopr.store.port import RunLog, RunRow

# In the snapshot of a larger run, references to large values are not resolved.
MAX_RESOLVED_BYTES: Final = 4 * 1024 * 1024


class RunSnapshots:
    """Reads encoded snapshots, stored ones or ones that are folded from the log."""

    def __init__(self, readers: Readers, store: RunLog) -> None:
        self._readers = readers
        self._store = store

    async def read(self, tenant: str, run: RunRow) -> bytes:
        """Return the snapshot of a run. Large values are references."""
        if run.snapshot is not None:
            return run.snapshot
        return (await self._readers.snapshot_in_turn(tenant, run.run_id, must=True)).body

    async def read_whole(self, tenant: str, run: RunRow) -> bytes:
        """Return the snapshot of a run with its large values, up to `MAX_RESOLVED_BYTES`."""
        body = await self.read(tenant, run)
        if MARK not in body:
            return body
        async with self._readers.heavy_reads.slot(tenant, must=True):
            found: JsonObject = await off_loop(len(body), partial(msgspec.json.decode, body))
            size = len(body) + referred_bytes(found)
            if size > MAX_RESOLVED_BYTES:
                return body
            try:
                whole = await LargeValues().resolve(self._store, tenant, run.run_id, found)
            except Unavailable:
                # Data of an observed run is not escaped, so it may only look like a reference.
                return body
            return await off_loop(size, partial(encode, whole))
