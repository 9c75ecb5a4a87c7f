"""What lists can be narrowed by, with the names that the wire has for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from wopr.protocol.names import not_there


class RunFilters(TypedDict, total=False):
    """The filters of `GET /v1/runs`."""

    status: str
    workflowId: str
    tag: str
    parentRunId: str
    sourceRunId: str
    waitingForCode: str
    quarantined: bool
    since: str
    until: str
    flagged: bool
    rated: bool
    corrected: bool
    label: str
    limit: str | int
    cursor: str


class FeedbackFilters(TypedDict, total=False):
    """The filters of `GET /v1/feedback/summary`."""

    since: str
    until: str
    workflowId: str
    agentId: str


class InboxFilters(TypedDict, total=False):
    """The filters of `GET /v1/interrupts`."""

    kind: str
    workflowId: str
    runId: str
    limit: str | int
    cursor: str


def query_of(filters: Mapping[str, object], known: Mapping[str, object]) -> dict[str, str]:
    """The filters as a query. Raises `TypeError` for a filter that does not exist."""
    for name in filters:
        if name not in known:
            raise TypeError(f"there is no filter {name!r}: {not_there(name, known)}")
    return {name: _text(value) for name, value in filters.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
