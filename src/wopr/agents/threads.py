"""Threads for users' blocking functions, so that they never block the event loop.

A thread cannot be stopped. A function that continues after its time limit, or after its run was
cancelled, is abandoned: its result is dropped, it no longer counts against the limit of threads,
and it is logged and counted until it returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import anyio
import structlog
from anyio.lowlevel import RunVar

from wopr.engine.outcome import NodeFailure

T = TypeVar("T")

# Further calls wait until one of these threads is free.
MAX_THREADS: Final = 128
# With this many abandoned threads, further calls are refused: the process would run out of threads.
MAX_ABANDONED: Final = 1000
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("wopr.agents.threads")
# The abandoned functions of this process that have not returned. Changed in event loops only.
_abandoned: set[object] = set()

log = structlog.get_logger("wopr.threads")


def abandoned_threads() -> int:
    """Return the number of abandoned functions that have not returned."""
    return len(_abandoned)


async def run_in_thread(call: Callable[[], T], function: Callable[..., object], **about: str) -> T:
    """Call a function in a thread and wait for its result. Context variables are kept.

    `call` calls `function`, a function of the user. If it is abandoned, the log names it together
    with `about`. A cancelled caller does not wait for it. The threads do not keep the process
    alive.
    """
    _refuse_when_too_many_are_abandoned()
    loop = asyncio.get_running_loop()
    limiter = _thread_limiter()
    borrower = object()
    await limiter.acquire_on_behalf_of(borrower)
    future: asyncio.Future[T] = loop.create_future()

    def finish(settle: Callable[[], None]) -> None:
        if borrower in _abandoned:
            _abandoned.discard(borrower)
        else:
            limiter.release_on_behalf_of(borrower)
        if not future.done():
            settle()

    def work() -> None:
        try:
            settle = partial(future.set_result, call())
        except BaseException as error:
            settle = partial(future.set_exception, _as_failure(error))
        # The loop is closed when the process stops before the function returns.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, settle)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="wopr-node", daemon=True)
    thread.start()
    try:
        return await future
    except asyncio.CancelledError:
        if thread.is_alive():
            _abandoned.add(borrower)
            limiter.release_on_behalf_of(borrower)
            log.warning(
                "a function continues in an abandoned thread",
                **_place(thread, function),
                abandoned_threads=abandoned_threads(),
                **about,
            )
        raise


def _refuse_when_too_many_are_abandoned() -> None:
    if abandoned_threads() >= MAX_ABANDONED:
        raise NodeFailure(
            f"{abandoned_threads()} functions continued after their time limit or after their run "
            "was cancelled, and have not returned: restart the process, and add time limits to "
            "these functions"
        )


def _place(thread: threading.Thread, function: Callable[..., object]) -> dict[str, str | int]:
    """Return the line of a function that its thread executes; its first line if that is unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return {"function": repr(function)}
    # This function is documented, although its name begins with an underscore.
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    line = code.co_firstlineno if frame is None else frame.f_lineno
    return {"function": code.co_qualname, "file": code.co_filename, "line": line}


def _as_failure(error: BaseException) -> Exception:
    """Return the error of a function as an `Exception`: `sys.exit()` must not end the host."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the function ended with {error!r}")


def _thread_limiter() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MAX_THREADS)
        _limiter.set(limiter)
        return limiter
