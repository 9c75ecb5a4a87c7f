"""Run blocking functions of users in threads, so that they never hold up the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import RunVar

T = TypeVar("T")

# Further calls wait until one of these threads is free.
MOST_THREADS: Final = 128
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("wopr.nodes.threads")


async def run_in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread and wait for its result. Context variables are kept.

    A thread cannot be stopped. A caller that is cancelled does not wait for it: the function goes
    on in the background, and its result is dropped. The threads do not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    limiter = _threads()
    borrower = object()
    await limiter.acquire_on_behalf_of(borrower)
    future: asyncio.Future[T] = loop.create_future()

    def finish(settle: Callable[[], None]) -> None:
        limiter.release_on_behalf_of(borrower)
        if not future.done():
            settle()

    def work() -> None:
        try:
            settle = partial(future.set_result, function())
        except BaseException as error:
            settle = partial(future.set_exception, _as_failure(error))
        # The loop is closed when the process stops before the function returns.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, settle)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="wopr-node", daemon=True).start()
    return await future


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
