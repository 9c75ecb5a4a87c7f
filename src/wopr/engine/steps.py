"""The steps that a plan names, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from wopr.protocol.documents import JsonObject
from wopr.protocol.runs import RunError


@dataclass(frozen=True, slots=True)
class Start:
    """Start a node."""

    node_id: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Skip:
    """Pass a node over."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FailNode:
    """Fail a node that never started."""

    node_id: str
    error: RunError


@dataclass(frozen=True, slots=True)
class Breach:
    """End the run because a cap was reached."""

    kind: str
    limit: float
    observed: float
    error: RunError
    node_id: str | None = None
    # Whose cap it was, when it was not the run's.
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Loopback:
    """End the run because a loop of the workflow went round too often."""

    node_id: str
    iterations: int
    limit: int
    error: RunError


@dataclass(frozen=True, slots=True)
class Resume:
    """Let a node go on with an answer that is on the log."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Expire:
    """End a wait that was not answered in time."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Complete the run."""

    outputs: JsonObject = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class FailRun:
    """Fail the run because a node failed and nothing in the workflow handles it."""

    node_id: str
    error: RunError


Step: TypeAlias = Start | Skip | FailNode | Breach | Loopback | Resume | Expire | Finish | FailRun


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps to take now, and when to look again if nothing happens before."""

    steps: tuple[Step, ...]
    wake_at: int | None
