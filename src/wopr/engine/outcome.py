"""How a node's execution can end, as far as the engine cares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from wopr.protocol.documents import JsonObject
from wopr.protocol.runs import RunError


@dataclass(frozen=True, slots=True)
class Completed:
    """The node is done."""

    outputs: JsonObject = field(default_factory=dict[str, object])


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


Outcome: TypeAlias = Completed | Failed | Sleeping | Waiting


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
