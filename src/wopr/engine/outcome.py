"""Outcomes of a node's execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import InterruptKind
from wopr.protocol.runs import RunError


@dataclass(frozen=True, slots=True)
class Completed:
    """The node completed.

    `cause` is the event that caused the completion, if it is not the start.
    """

    outputs: JsonObject = field(default_factory=dict[str, object])
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The node failed. The engine decides whether to retry it."""

    error: RunError


@dataclass(frozen=True, slots=True)
class Sleeping:
    """Call the node again at this time.

    No resource is held until then, and a restart keeps the timer.
    """

    until: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Call the node again after an outside event, such as the end of a child run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """Wait for an answer, then call the node again. `NodeContext.answer(key)` returns the answer.

    `extras` are further members of `node.suspended`. `opening` is the payload of a conversation's
    opening event. `script` has answers that the host gives at once, for conformance workflows.
    """

    kind: InterruptKind
    key: str
    data: JsonObject
    resume_schema: JsonObject | None = None
    timeout_ms: int = 0
    reason: str = ""
    extras: JsonObject = field(default_factory=dict[str, object])
    opening: JsonObject | None = None
    script: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breached:
    """The node reached one of its own limits, so the run fails.

    `scope` names the owner of the limit.
    """

    kind: str
    limit: float
    observed: float
    error: RunError
    scope: str = ""


Outcome: TypeAlias = Completed | Failed | Sleeping | Waiting | Suspended | Breached


class NodeFailure(Exception):
    """Raise it in a node to fail with an error code.

    Args:
        message: What went wrong.
        code: The error code of the node and the run.
        retryable: Whether another attempt may succeed.
        details: Further facts, as JSON.

    Example:
        >>> from wopr import NodeFailure
        >>> NodeFailure("the card was declined", code="card_declined").error.code
        'card_declined'
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "node_error",
        retryable: bool = True,
        details: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.error = (
            RunError(code=code, message=message, retryable=retryable)
            if details is None
            else RunError(code=code, message=message, retryable=retryable, details=details)
        )
