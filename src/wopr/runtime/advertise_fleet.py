"""What this host says of its fleet: where it is found, what it takes, its schemas and windows."""

from __future__ import annotations

from typing import Final

from wopr.fleet.observe import LINE_EVENT_TYPES
from wopr.fleet.schemas import AGENT_SCHEMA
from wopr.fleet.schemas import export as kahn_schemas
from wopr.fleet.statistics import DEFAULT_WINDOW, WINDOWS, read_window
from wopr.protocol.families import Kahn
from wopr.runtime.settings import Settings

__all__ = [
    "DEFAULT_WINDOW",
    "LINE_EVENT_TYPES",
    "WINDOWS",
    "kahn_family",
    "kahn_schemas",
    "push_limit",
    "read_window",
]

# What one push may hold at most: pushers cut their logs by it.
MAX_PUSH_BYTES: Final = 1024 * 1024


def push_limit(settings: Settings) -> int:
    """How long a push may be."""
    return min(MAX_PUSH_BYTES, settings.max_body_bytes)


def kahn_family(settings: Settings) -> Kahn:
    """What discovery says of the fleet."""
    return Kahn(
        supported=True,
        ingest_url="/v1/ingest/transitions",
        aggregate_url="/api/agent-runs/aggregate",
        audits_url="/api/audit-checkpoints/flakiness",
        schema_url=f"/v1/schemas/{AGENT_SCHEMA}.json",
        export_url="/api/runs/{runId}/transitions",
        max_body_bytes=push_limit(settings),
    )
