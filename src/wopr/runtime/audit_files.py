"""The audit log as the files of an audit sink have it, for verifying it without the database."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from wopr.protocol.errors import Refused
from wopr.runtime.audit_sink import CheckpointLine, sequence_of
from wopr.store.port.audit import AuditRow, CheckpointRow

_MISSING: Final = -1


class AuditFiles:
    """`AuditReading` on files of lines; the order of the files and repeated lines do not matter.

    Only the place of each entry is held in memory.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Find every line. Raises `Refused` for one that is neither an entry nor a checkpoint."""
        self._files = [path.open("rb") for path in paths]
        self._file_of: array[int] = array("h")
        self._offset_of: array[int] = array("q")
        self._checkpoints: dict[int, CheckpointRow] = {}
        try:
            for number, file in enumerate(self._files):
                for at, line in enumerate(iter(file.readline, b""), 1):
                    self._sort_in(number, file.tell() - len(line), line, f"{paths[number]}:{at}")
        except BaseException:
            self.close()
            raise

    @property
    def first(self) -> int:
        """The first sequence that the files have."""
        return next((s for s, number in enumerate(self._file_of) if number != _MISSING), 0)

    @property
    def first_checkpoint(self) -> int:
        """The first checkpoint whose entry the files have too; -1 when there is none."""
        return min((at for at in self._checkpoints if at >= self.first), default=_MISSING)

    def close(self) -> None:
        """Release the files."""
        for file in self._files:
            file.close()

    async def audit_head(self) -> int:
        """The sequence of the last entry; -1 when there is none."""
        return len(self._file_of) - 1

    async def signed_head(self) -> int:
        """The sequence of the last checkpoint; -1 when there is none."""
        return max(self._checkpoints, default=-1)

    async def audit_entries(self, start: int, limit: int) -> list[AuditRow]:
        """Entries from `start` on, in order, of all tenants."""
        return await anyio.to_thread.run_sync(self._entries, start, limit)

    async def checkpoints(self, start: int, end: int) -> list[CheckpointRow]:
        """Checkpoints at `start` to `end`, both included, in order."""
        return [row for at, row in sorted(self._checkpoints.items()) if start <= at <= end]

    async def last_checkpoint(self, before: int) -> CheckpointRow | None:
        """The last checkpoint below this sequence."""
        found = max((at for at in self._checkpoints if at < before), default=None)
        return None if found is None else self._checkpoints[found]

    def _sort_in(self, number: int, offset: int, line: bytes, where: str) -> None:
        sequence = sequence_of(line)
        if sequence is not None and 0 <= sequence < 2**48:
            self._sort_entry(sequence, number, offset, line, where)
            return
        try:
            row = msgspec.json.decode(line, type=CheckpointLine).row()
        except (ValueError, UnicodeDecodeError) as fault:
            message = f"{where}: the line is neither an audit entry nor a checkpoint"
            raise Refused(message, field="file") from fault
        if self._checkpoints.setdefault(row.at_sequence, row) != row:
            raise Refused(f"{where}: there is another checkpoint {row.at_sequence}", field="file")

    def _sort_entry(self, sequence: int, number: int, offset: int, line: bytes, where: str) -> None:
        missing = sequence + 1 - len(self._file_of)
        if missing > 0:
            self._file_of.extend([_MISSING] * missing)
            self._offset_of.extend([_MISSING] * missing)
        if self._file_of[sequence] == _MISSING:
            self._file_of[sequence], self._offset_of[sequence] = number, offset
            return
        place = self._files[number].tell()
        is_same = self._line(sequence) == line.rstrip(b"\n")
        self._files[number].seek(place)
        if not is_same:
            raise Refused(f"{where}: there is another entry {sequence}", field="file")

    def _entries(self, start: int, limit: int) -> list[AuditRow]:
        found: list[AuditRow] = []
        for sequence in range(start, len(self._file_of)):
            if len(found) == limit:
                break
            if self._file_of[sequence] != _MISSING:
                found.append(_row(sequence, self._line(sequence)))
        return found

    def _line(self, sequence: int) -> bytes:
        file = self._files[self._file_of[sequence]]
        file.seek(self._offset_of[sequence])
        return file.readline().rstrip(b"\n")


class _Tenant(msgspec.Struct):
    tenant: str = ""


def _row(sequence: int, line: bytes) -> AuditRow:
    """A line as a row: what it says of itself is checked by the walk over the chain."""
    tenant = msgspec.json.decode(line, type=_Tenant).tenant
    digest = hashlib.sha256(line).digest()
    return AuditRow(sequence=sequence, tenant=tenant, body=line, digest=digest)
