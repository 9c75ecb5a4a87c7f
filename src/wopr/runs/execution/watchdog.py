"""Detect code that blocks the event loop, and log its node.

An async node that calls blocking code, such as `time.sleep` or a synchronous HTTP client, stops
every request and every other run of the process. A thread detects that the loop does not run and
inspects its stack.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import anyio
import structlog

import wopr
from wopr.nodes.registry import NodeType
from wopr.process.metrics import Metrics
from wopr.protocol.errors import WoprError
from wopr.runs.active import ActiveRun
from wopr.runs.execution.agent_context import call_tool
from wopr.runs.execution.context import ExecutionContext
from wopr.runs.execution.execute import call_in_background

CHECKS_PER_LIMIT: Final = 4
UNKNOWN: Final = "unknown"
# A supervisor may kill a process that is frozen for longer than this.
FREEZE_SECONDS: Final = 3.0
# Paths of this package, its libraries and Python's modules. Other code is a user's.
_LIBRARY_PATHS: Final = (
    str(Path(wopr.__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)

log = structlog.get_logger("wopr.watchdog")


@dataclass(frozen=True, slots=True)
class Blocker:
    """The code that the event loop executes, with its node and its tool where they are known."""

    file: str
    line: int
    function: str
    context: ExecutionContext | None = None
    node_type: NodeType | None = None
    tool: str = ""


class Watchdog:
    """Logs and counts every block of the event loop that is longer than a limit."""

    def __init__(
        self,
        metrics: Metrics,
        limit_seconds: float,
        count_freeze: Callable[[str, str, int], None] | None = None,
    ) -> None:
        self._metrics = metrics
        # Called with tenant, run id and 1 when a run freezes the process, and with -1 afterwards.
        self._count_freeze = count_freeze
        self._frozen: tuple[str, str] | None = None
        self._limit = limit_seconds
        self._interval = limit_seconds / CHECKS_PER_LIMIT
        self._beat = 0.0
        self._stopped = threading.Event()

    async def run_forever(self) -> None:
        """Watch the event loop of the caller until cancelled. A limit of 0 turns this off."""
        if not self._limit:
            return
        self._beat = time.monotonic()
        watched = threading.get_ident()
        threading.Thread(
            target=self._watch, args=(watched,), name="wopr-watchdog", daemon=True
        ).start()
        try:
            while True:
                self._beat = time.monotonic()
                await anyio.sleep(self._interval)
        finally:
            self._stopped.set()

    def _watch(self, watched: int) -> None:
        reported = 0.0
        while not self._stopped.wait(self._interval):
            beat = self._beat
            self._check_freeze(watched, time.monotonic() - beat)
            if beat == reported or time.monotonic() - beat <= self._limit + self._interval:
                continue
            if self._inspect(watched, beat):
                reported = beat

    def _inspect(self, watched: int, beat: float) -> bool:
        """Report the code that blocks the loop; False when the loop runs again or waits for events.

        A separate function, because its variables are frames, which keep runs in memory.
        """
        # The function is documented for this use.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        blocker = find_blocker(frames.get(watched))
        if blocker is None or beat != self._beat:
            return False
        self._report(blocker)
        return True

    def _check_freeze(self, watched: int, seconds: float) -> None:
        """Record the run that freezes the process, in case the process is killed now."""
        if self._count_freeze is None:
            return
        is_frozen = seconds > max(self._limit, FREEZE_SECONDS)
        try:
            if is_frozen and self._frozen is None:
                frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
                self._frozen = _run_in(frames.get(watched))
                if self._frozen is not None:
                    self._count_freeze(*self._frozen, 1)
                    log.warning("a run freezes the process", run_id=self._frozen[1])
            elif not is_frozen and self._frozen is not None:
                self._count_freeze(*self._frozen, -1)
                self._frozen = None
        except WoprError as error:
            log.error("a frozen run is not recorded", code=error.code, message=str(error))

    def _report(self, blocker: Blocker) -> None:
        type_id = UNKNOWN if blocker.node_type is None else blocker.node_type.type_id
        self._metrics.count_blocked_loop(type_id)
        about = {} if blocker.context is None else _log_fields(blocker.context, type_id)
        if blocker.tool:
            about["tool"] = blocker.tool
        what = "function of the tool" if blocker.tool else "function"
        log.warning(
            f"event loop blocked: make the {what} plain instead of async, or await what takes time",
            limit_seconds=self._limit,
            file=blocker.file,
            line=blocker.line,
            function=blocker.function,
            **about,
        )


def find_blocker(innermost: FrameType | None) -> Blocker | None:
    """Return the code that a stack executes: the user's function, else the innermost line.

    The function of a node that the user declared is known. In a node of this package, such as an
    agent, the innermost line of code that is neither of this package nor of a library is taken.
    None when the loop waits for events, as it does after the process itself was stopped.
    """
    frames = list(_frames_outward(innermost))
    if not any(frame.f_code.co_flags & inspect.CO_COROUTINE for frame in frames):
        return None
    calls = [frame for frame in frames if frame.f_code is call_in_background.__code__]
    if not calls:
        return _blocker(frames[0])
    context, node_type = calls[0].f_locals["context"], calls[0].f_locals["node_type"]
    own: CodeType | None = getattr(inspect.unwrap(node_type.execute), "__code__", None)
    inner = frames[: frames.index(calls[0])]
    of_node = [frame for frame in inner if frame.f_code is own]
    of_user = [frame for frame in inner if _is_user_code(frame.f_code)]
    of_user_node = [frame for frame in of_node if frame in of_user]
    blocking = next(iter([*of_user_node, *of_user, *of_node]), frames[0])
    tools = [frame for frame in inner if frame.f_code is call_tool.__code__]
    tool = tools[0].f_locals["tool"].name if tools else ""
    return _blocker(blocking, context, node_type, tool)


def _run_in(innermost: FrameType | None) -> tuple[str, str] | None:
    """Return the tenant and the id of the run that a stack executes, or None."""
    for frame in _frames_outward(innermost):
        run = frame.f_locals.get("run")
        if isinstance(run, ActiveRun):
            return run.state.identity.tenant, run.state.identity.run_id
    return None


def _is_user_code(code: CodeType) -> bool:
    return not code.co_filename.startswith(("<", *_LIBRARY_PATHS))


def _blocker(
    frame: FrameType,
    context: ExecutionContext | None = None,
    node_type: NodeType | None = None,
    tool: str = "",
) -> Blocker:
    code = frame.f_code
    return Blocker(code.co_filename, frame.f_lineno, code.co_qualname, context, node_type, tool)


def _log_fields(context: ExecutionContext, type_id: str) -> dict[str, str]:
    return {"node_type": type_id, "node_id": context.node_id, "run_id": context.run_id}


def _frames_outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
