"""The audit log on the wire."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wopr.protocol.documents import Closed, NonEmpty


class AuditCheckpoint(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """A signed root over the entries 0 to `at_sequence`."""

    checkpoint: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    at_sequence: int
    merkle_root: NonEmpty
    signature: NonEmpty


class AuditAnomaly(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """A place where the chain does not hold."""

    at_seq: int
    expected_prev_hash: NonEmpty
    actual_prev_hash: str


class AuditVerifyResult(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """The result of verifying a part of the audit chain."""

    from_seq: int
    to_seq: int
    chain_valid: bool
    checkpoints_valid: bool
    checkpoints: list[AuditCheckpoint]
    anomalies: list[AuditAnomaly]
