"""Verifies the audit log: in a database, in a copy of it, or in the files of an audit sink."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from wopr.protocol.errors import Refused
from wopr.security.audit_chain import AuditFinding, ChainVerifier, MerkleTree, is_valid_signature
from wopr.services.audit.sink import CheckpointLine, sequence_of
from wopr.store.port.audit import AuditReader, AuditRow, CheckpointRow

PAGE: Final = 500
# The file number and the offset of an entry that is in no file.
_MISSING: Final = -1


@dataclass(slots=True)
class AuditReport:
    """The result of a verification: what was verified, and the findings."""

    entries: int = 0
    checkpoints: list[CheckpointRow] = field(default_factory=list[CheckpointRow])
    findings: list[AuditFinding] = field(default_factory=list[AuditFinding])

    @property
    def is_valid(self) -> bool:
        """Return whether there are no findings."""
        return not self.findings

    @property
    def has_valid_checkpoints(self) -> bool:
        """Return whether all checkpoints are valid."""
        return all(finding.kind != "checkpoint" for finding in self.findings)


async def verify_audit_log(log: AuditReader, start: int, end: int) -> AuditReport:
    """Verify every entry and checkpoint from `start` to `end`, both included."""
    verifier = await _start_verifier(log, start)
    report = AuditReport(checkpoints=await log.checkpoints(start, end))
    due = list(report.checkpoints)
    while verifier.next_sequence <= end:
        rows = await log.audit_entries(verifier.next_sequence, PAGE)
        rows = [row for row in rows if row.sequence <= end]
        if not rows:
            break
        found = await anyio.to_thread.run_sync(_check_entries, verifier, rows, due)
        report.entries += sum(row.sequence >= start for row in rows)
        report.findings += [finding for finding in found if finding.at >= start]
    for row in due:
        report.findings += _check_checkpoint(verifier, row)
    return report


async def _start_verifier(log: AuditReader, start: int) -> ChainVerifier:
    """Begin at the last signed root before `start`, or at the first entry."""
    anchor = await log.last_checkpoint(start)
    if anchor is None:
        return ChainVerifier()
    tree = MerkleTree.restore(anchor.at_sequence + 1, anchor.peaks)
    is_valid = (
        tree is not None
        and tree.root().hex() == anchor.merkle_root
        and is_valid_signature(anchor.merkle_root, anchor.signature, anchor.public_key)
    )
    rows = await log.audit_entries(anchor.at_sequence, 1)
    if not is_valid or not rows or rows[0].sequence != anchor.at_sequence:
        return ChainVerifier()
    return ChainVerifier(tree, rows[0].body)


def _check_entries(
    verifier: ChainVerifier, rows: Sequence[AuditRow], due: list[CheckpointRow]
) -> list[AuditFinding]:
    """Verify a page of entries, and remove from `due` the checkpoints that it covers."""
    found: list[AuditFinding] = []
    for row in rows:
        while due and due[0].at_sequence < row.sequence:
            found += _check_checkpoint(verifier, due.pop(0))
        found += verifier.verify_entry(row.sequence, row.tenant, row.body, row.digest)
    while due and due[0].at_sequence < verifier.next_sequence:
        found += _check_checkpoint(verifier, due.pop(0))
    return found


def _check_checkpoint(verifier: ChainVerifier, row: CheckpointRow) -> list[AuditFinding]:
    return list(
        verifier.verify_checkpoint(
            row.at_sequence, row.merkle_root, row.signature, row.public_key, row.peaks
        )
    )


class AuditFiles:
    """`AuditReader` from the files of an audit sink, in any order and with repeated lines.

    Only the position of each entry is in memory.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Index every line. Raises `Refused` for a line that is not an entry or a checkpoint."""
        self._files = [path.open("rb") for path in paths]
        self._file_of: array[int] = array("h")
        self._offset_of: array[int] = array("q")
        self._checkpoints: dict[int, CheckpointRow] = {}
        try:
            for number, file in enumerate(self._files):
                for at, line in enumerate(iter(file.readline, b""), 1):
                    self._index(number, file.tell() - len(line), line, f"{paths[number]}:{at}")
        except BaseException:
            self.close()
            raise

    @property
    def first(self) -> int:
        """The first sequence in the files."""
        return next((s for s, number in enumerate(self._file_of) if number != _MISSING), 0)

    @property
    def first_checkpoint(self) -> int:
        """Return the first checkpoint whose entry is in the files; -1 if there is none."""
        return min((at for at in self._checkpoints if at >= self.first), default=_MISSING)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    async def audit_head(self) -> int:
        """Return the sequence of the last entry; -1 if there is none."""
        return len(self._file_of) - 1

    async def signed_head(self) -> int:
        """Return the sequence of the last checkpoint; -1 if there is none."""
        return max(self._checkpoints, default=-1)

    async def audit_entries(self, start: int, limit: int) -> list[AuditRow]:
        """List entries from `start` on, in order, of all tenants."""
        return await anyio.to_thread.run_sync(self._entries, start, limit)

    async def checkpoints(self, start: int, end: int) -> list[CheckpointRow]:
        """List the checkpoints at `start` to `end`, both included, in order."""
        return [row for at, row in sorted(self._checkpoints.items()) if start <= at <= end]

    async def last_checkpoint(self, before: int) -> CheckpointRow | None:
        """Return the last checkpoint below this sequence."""
        found = max((at for at in self._checkpoints if at < before), default=None)
        return None if found is None else self._checkpoints[found]

    def _index(self, number: int, offset: int, line: bytes, where: str) -> None:
        sequence = sequence_of(line)
        if sequence is not None and 0 <= sequence < 2**48:
            self._index_entry(sequence, number, offset, line, where)
            return
        try:
            row = msgspec.json.decode(line, type=CheckpointLine).row()
        except (ValueError, UnicodeDecodeError) as fault:
            message = f"{where}: the line is neither an audit entry nor a checkpoint"
            raise Refused(message, field="file") from fault
        if self._checkpoints.setdefault(row.at_sequence, row) != row:
            raise Refused(
                f"{where}: there are two different checkpoints {row.at_sequence}", field="file"
            )

    def _index_entry(
        self, sequence: int, number: int, offset: int, line: bytes, where: str
    ) -> None:
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
            raise Refused(f"{where}: there are two different entries {sequence}", field="file")

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
    """Return the row of a line. `ChainVerifier` verifies its content."""
    tenant = msgspec.json.decode(line, type=_Tenant).tenant
    digest = hashlib.sha256(line).digest()
    return AuditRow(sequence=sequence, tenant=tenant, body=line, digest=digest)
