"""Payloads of voice events. This host reads them but never emits them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from wopr.protocol.documents import UNSET, Closed, Millis, NonEmpty, Unset
from wopr.protocol.events.values import Count, Ratio


class VoiceSpeechStart(Closed, frozen=True, kw_only=True):
    """A speaker began to speak."""

    at_ms: Millis


class VoiceTranscript(Closed, frozen=True, kw_only=True):
    """A transcript of speech. It is untrusted input."""

    text: str
    is_final: bool
    at_ms: Millis
    content_trust: Literal["untrusted"]
    committed_prefix: str | Unset = UNSET
    stability: Ratio | Unset = UNSET
    formatted: bool | Unset = UNSET


class VoiceEndpointCandidate(Closed, frozen=True, kw_only=True):
    """The speaker may have finished."""

    at_ms: Millis
    confidence: Ratio | Unset = UNSET


class VoiceTurnCommit(Closed, frozen=True, kw_only=True):
    """The speaker has finished."""

    at_ms: Millis
    final_text: str


class VoiceSynthesisChunk(Closed, frozen=True, kw_only=True):
    """A piece of synthesised speech."""

    seq: Count
    mime_type: NonEmpty
    duration_ms: Millis | Unset = UNSET
    url: str | Unset = UNSET
    stream_ref: str | Unset = UNSET
    base64: str | Unset = UNSET
    final: bool | Unset = UNSET


class VoiceBargeIn(Closed, frozen=True, kw_only=True):
    """A speaker interrupted the host."""

    at_ms: Millis


class VoiceCancelled(Closed, frozen=True, kw_only=True):
    """The host stopped speaking."""

    at_ms: Millis
    reason: Literal["barge-in", "explicit"] | Unset = UNSET


PAYLOADS: Final[dict[str, type[msgspec.Struct]]] = {
    "voice.speech_start": VoiceSpeechStart,
    "voice.transcript": VoiceTranscript,
    "voice.endpoint_candidate": VoiceEndpointCandidate,
    "voice.turn_commit": VoiceTurnCommit,
    "voice.synthesis_chunk": VoiceSynthesisChunk,
    "voice.barge_in": VoiceBargeIn,
    "voice.cancelled": VoiceCancelled,
}
