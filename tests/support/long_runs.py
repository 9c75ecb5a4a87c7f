"""Runs that last long enough to be stopped."""

from __future__ import annotations

from tests.support.client import Wire

SLOW = {"delayMs": 120_000}


def under_way(wire: Wire) -> str:
    run_id = wire.create("conformance-cancellable", SLOW)
    wire.events_until(run_id, "node.started")
    return run_id
