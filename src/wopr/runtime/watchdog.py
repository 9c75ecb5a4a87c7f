"""Detect code that blocks the event loop, and name the node that does it.

An async node that calls blocking code, such as `time.sleep` or a synchronous HTTP client, stops
every request and every other run of the process. A thread notices that the loop no longer runs and
looks at what it executes.
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

from wopr.nodes.registry import NodeType
from wopr.protocol.errors import WoprError
from wopr.runtime.active import ActiveRun
from wopr.runtime.agent_call import AgentCall
from wopr.runtime.calling import call_and_wait
from wopr.runtime.llm_call import call_tool
from wopr.runtime.metrics import Metrics

CHECKS_PER_LIMIT: Final = 4
UNKNOWN: Final = "unknown"
# A process that is frozen for longer than this may be killed for it.
FREEZE_SECONDS: Final = 3.0
# Where this package, its libraries and Python's own modules are: code that no user wrote.
_LIBRARY_PATHS: Final = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)

log = structlog.get_logger("wopr.watchdog")


@dataclass(frozen=True, slots=True)
class Blocker:
    """The code that the event loop executes, with its node and its tool where they are known."""

    file: str
    line: int
    function: str
    call: AgentCall | None = None
    node_type: NodeType | None = None
    tool: str = ""


class Watchdog:
    """Logs and counts every time that the event loop is blocked for longer than a limit."""

    def __init__(
        self,
        metrics: Metrics,
        limit_seconds: float,
        count_freeze: Callable[[str, str, int], None] | None = None,
    ) -> None:
        self._metrics = metrics
        # Told the tenant and id of a run that freezes the process and 1, and -1 when it is over.
        self._count_freeze = count_freeze
        self._frozen: tuple[str, str] | None = None
        self._limit = limit_seconds
        self._interval = limit_seconds / CHECKS_PER_LIMIT
        self._beat = 0.0
        self._stopped = threading.Event()

    async def run_forever(self) -> None:
        """Watch the event loop that this is called in, until cancelled. A limit of 0 is off."""
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
            self._look_for_freeze(watched, time.monotonic() - beat)
            if beat == reported or time.monotonic() - beat <= self._limit + self._interval:
                continue
            if self._look(watched, beat):
                reported = beat

    def _look(self, watched: int, beat: float) -> bool:
        """Report what blocks the loop; False when it runs again or waits for events.

        A function of its own: its variables hold frames, which would keep runs in memory.
        """
        # Documented for programs that look at their own threads.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        blocker = find_blocker(frames.get(watched))
        if blocker is None or beat != self._beat:
            return False
        self._report(blocker)
        return True

    def _look_for_freeze(self, watched: int, seconds: float) -> None:
        """Put the run that freezes the process on record, in case the process is killed now."""
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
            log.error("a frozen run is not on record", code=error.code, message=str(error))

    def _report(self, blocker: Blocker) -> None:
        type_id = UNKNOWN if blocker.node_type is None else blocker.node_type.type_id
        self._metrics.loop_blocked(type_id)
        about = {} if blocker.call is None else _about(blocker.call, type_id)
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
    """Find what a stack executes: the line of the user's function, or else the innermost line.

    The function of a node that the user declared is known. In a node of this package, such as an
    agent, the innermost line of code that is neither of this package nor of a library is taken.

    None when the loop waits for events, as it does after the process itself was stopped.
    """
    frames = list(_outwards(innermost))
    if not any(frame.f_code.co_flags & inspect.CO_COROUTINE for frame in frames):
        return None
    calls = [frame for frame in frames if frame.f_code is call_and_wait.__code__]
    if not calls:
        return _blocker(frames[0])
    call, node_type = calls[0].f_locals["call"], calls[0].f_locals["node_type"]
    own: CodeType | None = getattr(inspect.unwrap(node_type.execute), "__code__", None)
    inner = frames[: frames.index(calls[0])]
    of_node = [frame for frame in inner if frame.f_code is own]
    of_user = [frame for frame in inner if _is_users(frame.f_code)]
    of_users_node = [frame for frame in of_node if frame in of_user]
    blocking = next(iter([*of_users_node, *of_user, *of_node]), frames[0])
    tools = [frame for frame in inner if frame.f_code is call_tool.__code__]
    tool = tools[0].f_locals["tool"].name if tools else ""
    return _blocker(blocking, call, node_type, tool)


def _run_in(innermost: FrameType | None) -> tuple[str, str] | None:
    """The tenant and id of the run that a stack works on."""
    for frame in _outwards(innermost):
        run = frame.f_locals.get("run")
        if isinstance(run, ActiveRun):
            return run.state.identity.tenant, run.state.identity.run_id
    return None


def _is_users(code: CodeType) -> bool:
    return not code.co_filename.startswith(("<", *_LIBRARY_PATHS))


def _blocker(
    frame: FrameType,
    call: AgentCall | None = None,
    node_type: NodeType | None = None,
    tool: str = "",
) -> Blocker:
    code = frame.f_code
    return Blocker(code.co_filename, frame.f_lineno, code.co_qualname, call, node_type, tool)


def _about(call: AgentCall, type_id: str) -> dict[str, str]:
    return {"node_type": type_id, "node_id": call.node_id, "run_id": call.run_id}


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
