"""Errors of the Python API.

HostError                a call to the host failed
├── HostRefused          the host refused the call, with an error code of the protocol
└── HostUnreachable      the host did not respond, or its response is invalid
RunEnded                 a run ended without a result
├── RunFailed            the run failed
└── RunCancelled         the run was cancelled
WorkflowError            the declaration of a workflow, an agent or a tool has errors
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError

_TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})


class HostError(Exception):
    """A call to the host failed.

    Attributes:
        message: The error message.
        code: The error code, such as `not_found`.
        details: The details of the error.
        is_transient: Whether the same call may succeed later.
        retry_after: The seconds to wait before the next attempt, if the host says so.

    Example:
        >>> from wopr import Host, HostError
        >>> async def status(host: Host, run_id: str) -> str:
        ...     try:
        ...         return (await host.run(run_id).snapshot()).status
        ...     except HostError as error:
        ...         return error.code
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        details: JsonObject | None = None,
        is_transient: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details: JsonObject = details or {}
        self.is_transient = is_transient
        self.retry_after = retry_after


class HostRefused(HostError):
    """The host responded with an error.

    Attributes:
        status: The HTTP status of the response.

    Example:
        >>> from wopr import Host, HostRefused
        >>> async def exists(host: Host, run_id: str) -> bool:
        ...     try:
        ...         await host.run(run_id).snapshot()
        ...     except HostRefused as error:
        ...         if error.status != 404:
        ...             raise
        ...         return False
        ...     return True
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int,
        details: JsonObject,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(
            message,
            code=code,
            details=details,
            is_transient=status in _TRANSIENT,
            retry_after=retry_after,
        )
        self.status = status


class HostUnreachable(HostError):
    """The host did not respond, or its response is not valid.

    Example:
        >>> from wopr import HostUnreachable, connect
        >>> async def is_running() -> bool:
        ...     async with connect() as host:
        ...         try:
        ...             await host.runs(limit=1)
        ...         except HostUnreachable:
        ...             return False
        ...     return True
    """

    def __init__(
        self, message: str, *, code: str = "server_unreachable", is_transient: bool = True
    ) -> None:
        super().__init__(message, code=code, is_transient=is_transient)


class RunEnded(Exception):
    """A run ended without a result.

    Attributes:
        run_id: The run's id.

    Example:
        >>> from wopr import Run, RunEnded
        >>> async def outputs(run: Run[object]) -> object:
        ...     try:
        ...         return await run.result()
        ...     except RunEnded as error:
        ...         return str(error)
    """

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(f"run {run_id} {message}")
        self.run_id = run_id


class RunFailed(RunEnded):
    """A run failed.

    Attributes:
        code: The code of the run's error.
        details: The details of the run's error.

    Example:
        >>> from wopr import Run, RunFailed
        >>> async def outputs(run: Run[object]) -> object:
        ...     try:
        ...         return await run.result()
        ...     except RunFailed as error:
        ...         return error.code
    """

    def __init__(self, run_id: str, code: str, message: str, details: JsonObject) -> None:
        super().__init__(run_id, f"failed with {code}: {message}")
        self.code = code
        self.details = details


class RunCancelled(RunEnded):
    """A run was cancelled.

    Example:
        >>> from wopr import Run, RunCancelled
        >>> async def was_cancelled(run: Run[object]) -> bool:
        ...     try:
        ...         await run.result()
        ...     except RunCancelled:
        ...         return True
        ...     return False
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, "was cancelled")


class WorkflowError(ValueError):
    """A declaration of a workflow, an agent or a tool has errors.

    Attributes:
        faults: The errors, one line each.

    Example:
        >>> from wopr import Workflow, WorkflowError
        >>> flow = Workflow("order")
        >>> _ = flow.add("wait", "core.delay", config={"delayMs": 10})
        >>> try:
        ...     flow.add("wait", "core.delay", config={"delayMs": 10})
        ... except WorkflowError as error:
        ...     print(error)
        workflow order: there already is a node 'wait'
    """

    def __init__(self, what: str, faults: Sequence[str]) -> None:
        super().__init__(f"{what}: " + "; ".join(faults))
        self.faults = tuple(faults)


def faults_of(refusal: WoprError, node_ids: Sequence[str] = ()) -> list[str]:
    """Return the errors of a check, one line each, with node ids in place of `nodes.2`."""
    errors = cast("list[JsonObject]", refusal.details.get("errors", ()))
    faults = [_fault(str(each["path"]), str(each["message"]), node_ids) for each in errors]
    return faults or [refusal.message]


def _fault(path: str, message: str, node_ids: Sequence[str]) -> str:
    first, _, rest = path.partition(".")
    index, _, member = rest.partition(".")
    if first == "nodes" and index.isdecimal() and int(index) < len(node_ids):
        return f"node {node_ids[int(index)]}: " + (f"{member}: " if member else "") + message
    return f"{path}: {message}" if path else message
