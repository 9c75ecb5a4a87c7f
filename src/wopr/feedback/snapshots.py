"""Snapshots of runs for feedback: as they are stored, or with their large values."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from wopr.process.tenant_slots import run_by_size
from wopr.protocol.documents import JsonObject, encode
from wopr.protocol.errors import Unavailable
from wopr.protocol.references import REFERENCE_MARK, referenced_bytes
from wopr.runs.large_values import LargeValues
from wopr.runs.run_reader import RunReader
from wopr.store.port import RunLog, RunRow

# In the snapshot of a larger run, references to large values are not resolved.
MAX_RESOLVED_BYTES: Final = 4 * 1024 * 1024


class RunSnapshots:
    """Reads encoded snapshots, stored ones or ones that are folded from the log."""

    def __init__(self, run_reader: RunReader, store: RunLog) -> None:
        self._run_reader = run_reader
        self._store = store

    async def read(self, tenant: str, run: RunRow) -> bytes:
        """Return the snapshot of a run. Large values are references."""
        if run.snapshot is not None:
            return run.snapshot
        return (
            await self._run_reader.snapshot_with_slot(tenant, run.run_id, always_waits=True)
        ).body

    async def read_whole(self, tenant: str, run: RunRow) -> bytes:
        """Return the snapshot of a run with its large values, up to `MAX_RESOLVED_BYTES`."""
        body = await self.read(tenant, run)
        if REFERENCE_MARK not in body:
            return body
        async with self._run_reader.heavy_reads.slot(tenant, always_waits=True):
            found: JsonObject = await run_by_size(len(body), partial(msgspec.json.decode, body))
            size = len(body) + referenced_bytes(found)
            if size > MAX_RESOLVED_BYTES:
                return body
            try:
                whole = await LargeValues().resolve(self._store, tenant, run.run_id, found)
            except Unavailable:
                # Data of an observed run is not escaped, so it may only look like a reference.
                return body
            return await run_by_size(size, partial(encode, whole))
