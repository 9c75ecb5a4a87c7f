"""Run blocking functions of users in threads, so that they never hold up the event loop.

A thread cannot be stopped. A function that goes on after its time limit, or after its run was
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
MOST_THREADS: Final = 128
# The largest number of abandoned threads. Further calls are refused, because the process would run
# out of threads.
MOST_ABANDONED: Final = 1000
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("wopr.nodes.threads")
# Abandoned functions of this process that have not returned. Changed on event loops only.
_abandoned: set[object] = set()

log = structlog.get_logger("wopr.threads")


def abandoned_threads() -> int:
    """How many abandoned functions have not returned."""
    return len(_abandoned)


async def run_in_thread(call: Callable[[], T], function: Callable[..., object], **about: str) -> T:
    """Call a function in a thread and wait for its result. Context variables are kept.

    `call` calls `function`, the user's own, which the log names together with `about` when it is
    abandoned. A caller that is cancelled does not wait for it. The threads do not keep the process
    alive.
    """
    _refuse_when_too_many_are_abandoned()
    loop = asyncio.get_running_loop()
    limiter = _threads()
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
                "a function goes on in an abandoned thread",
                **_place(thread, function),
                abandoned_threads=abandoned_threads(),
                **about,
            )
        raise


def _refuse_when_too_many_are_abandoned() -> None:
    if abandoned_threads() >= MOST_ABANDONED:
        raise NodeFailure(
            f"{abandoned_threads()} functions went on after their time limit or after their run was "
            "cancelled, and have not returned: restart the process, and give these functions time "
            "limits of their own"
        )


def _place(thread: threading.Thread, function: Callable[..., object]) -> dict[str, str | int]:
    """The line of a function that its thread executes; its first line where that is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return {"function": repr(function)}
    # Documented for programs that look at their own threads.
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    line = code.co_firstlineno if frame is None else frame.f_lineno
    return {"function": code.co_qualname, "file": code.co_filename, "line": line}


def _as_failure(error: BaseException) -> Exception:
    """Make a failure of everything that ends a function: `sys.exit()` must not end the host."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the function ended with {error!r}")


def _threads() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MOST_THREADS)
        _limiter.set(limiter)
        return limiter
