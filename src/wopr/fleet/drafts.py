"""Drafts of what an observed run's log and side store get; the host stamps and stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from wopr.fleet.events import AuditCheckpoint
from wopr.protocol.documents import JsonObject


class EventDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An event without its place in the log.

    `cause` is the place of another draft in the same list, which comes before this one.
    """

    type: str
    payload: JsonObject
    timestamp: str
    node_id: str | None = None
    cause: int | None = None


class AnnotationDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An annotation of the whole run, not stored yet."""

    signal: JsonObject
    actor: str
    timestamp: str
    note: str


Draft: TypeAlias = EventDraft | AnnotationDraft


class Batch:
    """The drafts of one line."""

    def __init__(self, timestamp: str, advertises: Callable[[str], bool]) -> None:
        self.drafts: list[Draft] = []
        self._timestamp = timestamp
        self._advertises = advertises
        self._vendor: int | None = None

    def vendor(self, event_type: str, payload: JsonObject, node_id: str | None) -> None:
        """Add the event that holds the line; what is added after it was caused by it."""
        self._vendor = self._append(event_type, payload, node_id, None)

    def add(
        self,
        event_type: str,
        payload: JsonObject,
        node_id: str | None = None,
        cause: int | None = None,
    ) -> int | None:
        """Add a standard event if the host may emit it, and return its place."""
        if not self._advertises(event_type):
            return None
        return self._append(event_type, payload, node_id, self._vendor if cause is None else cause)

    def annotate(self, audit: AuditCheckpoint) -> None:
        """Add a run-scoped check as an annotation."""
        said = f"{audit.checkpoint_id}={audit.result}"
        is_flag = audit.result == "fail"
        signal = {"kind": "flag"} if is_flag else {"kind": "label", "label": said}
        actor = f"kahn:{audit.run_id}"
        self.drafts.append(
            AnnotationDraft(signal=signal, actor=actor, timestamp=self._timestamp, note=said)
        )

    def _append(
        self, event_type: str, payload: JsonObject, node_id: str | None, cause: int | None
    ) -> int:
        self.drafts.append(
            EventDraft(
                type=event_type,
                payload=payload,
                timestamp=self._timestamp,
                node_id=node_id,
                cause=cause,
            )
        )
        return len(self.drafts) - 1
