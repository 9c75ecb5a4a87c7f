"""The four stream modes and the events of each."""

from __future__ import annotations

from typing import Final

from wopr.protocol.errors import BadStreamMode

MODES: Final = ("updates", "values", "messages", "debug")

_UPDATES: Final = frozenset(
    """
    run.started run.completed run.failed run.cancelled run.paused run.resumed
    node.completed node.failed node.skipped node.suspended node.dispatched node.cancelled
    node.resumed approval.requested approval.received artifact.created workspace.updated
    """.split()
)
_UPDATES_FAMILIES: Final = (
    "clarification.",
    "interrupt.",
    "eval.",
    "deployment.",
    "proposal.",
    "goal.",
)
# The mode `values` sends a snapshot after each update, and also after events of these types.
VALUES_EXTRA: Final = frozenset({"node.started"})


def is_update(event_type: str) -> bool:
    """Return whether the mode `updates` includes this event type."""
    return event_type in _UPDATES or event_type.startswith(_UPDATES_FAMILIES)


def parse_modes(raw: str | None) -> frozenset[str]:
    """Parse a `streamMode` query value: one mode, or a comma-separated list without `values`."""
    if raw is None:
        return frozenset({"updates"})
    modes = [mode.strip() for mode in raw.split(",")]
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or ("values" in modes and len(set(modes)) > 1):
        raise BadStreamMode(
            f"streamMode must be one of {', '.join(MODES)}, or a comma-separated list without values; "
            f"got {raw!r}",
            supported=list(MODES),
            field="streamMode",
        )
    return frozenset(modes)


def includes_event(modes: frozenset[str], event_type: str) -> bool:
    """Return whether these modes include this event."""
    return "debug" in modes or ("updates" in modes and is_update(event_type))
