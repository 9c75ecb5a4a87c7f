"""How a node's execution can end, as far as the engine cares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.interrupts import InterruptKind
from wopr.protocol.runs import RunError


@dataclass(frozen=True, slots=True)
class Completed:
    """The node is done; `cause` is the event that its completion follows from, if not its start."""

    outputs: JsonObject = field(default_factory=dict[str, object])
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The node failed; the engine decides whether to try again."""

    error: RunError


@dataclass(frozen=True, slots=True)
class Sleeping:
    """Call the node again at this instant. Nothing is held meanwhile, and a restart keeps it."""

    until: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Call the node again when something outside happens, such as the end of a child run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """Wait for an answer, then call the node again, which finds it under `key`.

    `extras` are further members of `node.suspended`. `opening` is the payload of a conversation's
    opening event. `script` holds answers that the host gives at once, for conformance workflows.
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
    """The node reached a cap of its own: the run fails, and says which; `scope` is whose it was."""

    kind: str
    limit: float
    observed: float
    error: RunError
    scope: str = ""


Outcome: TypeAlias = Completed | Failed | Sleeping | Waiting | Suspended | Breached


class NodeFailure(Exception):
    """Raised by a node to fail with a code of its own."""

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
