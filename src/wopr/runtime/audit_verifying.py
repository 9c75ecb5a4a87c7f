"""Verifies the audit log from what is stored: on the host itself, or on a copy of its database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio.to_thread

from wopr.security.audit_chain import Tree, is_signed
from wopr.security.audit_findings import Finding, Walk
from wopr.store.port.audit import AuditReading, AuditRow, CheckpointRow

PAGE: Final = 500


@dataclass(slots=True)
class Verdict:
    """What was looked at, and all that is wrong with it."""

    entries: int = 0
    checkpoints: list[CheckpointRow] = field(default_factory=list[CheckpointRow])
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def is_valid(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def has_valid_checkpoints(self) -> bool:
        """Whether no checkpoint is at fault."""
        return all(finding.kind != "checkpoint" for finding in self.findings)


async def verify(log: AuditReading, start: int, end: int) -> Verdict:
    """Look at every entry and checkpoint from `start` to `end`, both included."""
    walk = await _walk_from(log, start)
    verdict = Verdict(checkpoints=await log.checkpoints(start, end))
    due = list(verdict.checkpoints)
    while walk.next <= end:
        rows = await log.audit_entries(walk.next, PAGE)
        rows = [row for row in rows if row.sequence <= end]
        if not rows:
            break
        found = await anyio.to_thread.run_sync(_look_at, walk, rows, due)
        verdict.entries += sum(row.sequence >= start for row in rows)
        verdict.findings += [finding for finding in found if finding.at >= start]
    for row in due:
        verdict.findings += _look_at_checkpoint(walk, row)
    return verdict


async def _walk_from(log: AuditReading, start: int) -> Walk:
    """Begin at the last signed root before `start`; without one, at the beginning."""
    anchor = await log.last_checkpoint(start)
    if anchor is None:
        return Walk()
    tree = Tree.restored(anchor.at_sequence + 1, anchor.peaks)
    is_sound = (
        tree is not None
        and tree.root().hex() == anchor.merkle_root
        and is_signed(anchor.merkle_root, anchor.signature, anchor.public_key)
    )
    rows = await log.audit_entries(anchor.at_sequence, 1)
    if not is_sound or not rows or rows[0].sequence != anchor.at_sequence:
        return Walk()
    return Walk(tree, rows[0].body)


def _look_at(walk: Walk, rows: Sequence[AuditRow], due: list[CheckpointRow]) -> list[Finding]:
    """Walk over a page of entries; checkpoints are looked at where they stand and taken off."""
    found: list[Finding] = []
    for row in rows:
        while due and due[0].at_sequence < row.sequence:
            found += _look_at_checkpoint(walk, due.pop(0))
        found += walk.entry(row.sequence, row.tenant, row.body, row.digest)
    while due and due[0].at_sequence < walk.next:
        found += _look_at_checkpoint(walk, due.pop(0))
    return found


def _look_at_checkpoint(walk: Walk, row: CheckpointRow) -> list[Finding]:
    return list(
        walk.checkpoint(row.at_sequence, row.merkle_root, row.signature, row.public_key, row.peaks)
    )
