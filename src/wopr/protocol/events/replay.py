"""Payloads of replay events: where a replay differs from its source."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from wopr.protocol.documents import UNSET, Closed, Document, NonEmpty, Unset
from wopr.protocol.events.values import Count

EnvelopeKind: TypeAlias = Literal["valid", "refusal"]


class ReplayDiverged(Document, frozen=True, kw_only=True):
    """The replay differs from its source here and continues."""

    source_run_id: NonEmpty
    at_sequence: Count
    original_event_id: str | Unset = UNSET
    divergence_kind: Literal["output", "missing", "extra", "type-mismatch"] | Unset = UNSET
    divergence_point: str | Unset = UNSET


class ReplayDivergedAtRefusal(Closed, frozen=True, kw_only=True):
    """A model refused in only one of the two runs. The replay fails."""

    source_run_id: NonEmpty
    at_sequence: Count
    original_envelope_kind: EnvelopeKind
    replay_envelope_kind: EnvelopeKind
    original_event_id: str | Unset = UNSET
    node_id: NonEmpty | Unset = UNSET
    refusal_reason: str | Unset = UNSET

    def __post_init__(self) -> None:
        if self.original_envelope_kind == self.replay_envelope_kind:
            raise ValueError("originalEnvelopeKind and replayEnvelopeKind must differ")


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "replay.diverged": ReplayDiverged,
    "replay.divergedAtRefusal": ReplayDivergedAtRefusal,
}
