"""What can go wrong for a program that uses a host.

HostError                a call of the host that did not succeed
├── HostRefused          the host said no, with a code of the protocol
└── HostUnreachable      no answer, or a broken one; asking again may help
RunEnded                 a run that ended without a result
├── RunFailed            it failed; says why
└── RunCancelled         somebody cancelled it
WorkflowError            a workflow or an agent that cannot work, found before it runs
"""

from __future__ import annotations

from collections.abc import Sequence

from wopr.protocol.documents import JsonObject

_PASSING = frozenset({429, 500, 502, 503, 504})


class HostError(Exception):
    """A call of the host that did not succeed."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    @property
    def is_passing(self) -> bool:
        """Tell whether the same call may succeed later."""
        return False


class HostRefused(HostError):
    """The host said no: the HTTP status, the code and the details of its answer."""

    def __init__(self, message: str, *, code: str, status: int, details: JsonObject) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.details = details

    @property
    def is_passing(self) -> bool:
        """Tell whether the host may say yes later."""
        return self.status in _PASSING


class HostUnreachable(HostError):
    """The host gave no answer, or one that is not the protocol's."""

    def __init__(self, message: str, *, code: str = "server_unreachable") -> None:
        super().__init__(message, code=code)

    @property
    def is_passing(self) -> bool:
        """A host that is away may come back."""
        return True


class RunEnded(Exception):
    """A run that ended without a result."""

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(f"run {run_id} {message}")
        self.run_id = run_id


class RunFailed(RunEnded):
    """A run that failed, with the code and the details of its error."""

    def __init__(self, run_id: str, code: str, message: str, details: JsonObject) -> None:
        super().__init__(run_id, f"failed with {code}: {message}")
        self.code = code
        self.details = details


class RunCancelled(RunEnded):
    """A run that was cancelled."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, "was cancelled")


class WorkflowError(ValueError):
    """What cannot work, found before it runs; `faults` has one line each."""

    def __init__(self, what: str, faults: Sequence[str]) -> None:
        super().__init__(f"{what}: " + "; ".join(faults))
        self.faults = tuple(faults)
