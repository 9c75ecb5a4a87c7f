"""A small pool of subprocesses for work that may take too long.

A call into a compiled library holds the interpreter and cannot be stopped. Here it runs in a
subprocess that is killed at a deadline and replaced. Subprocesses are started when they are first
needed, get no secret from the host's environment, and have a limit of memory. Tenants take turns: the
calls of one tenant use at most half of the subprocesses, and its queue is bounded.

Redaction of large texts needs the secrets of the host and cannot run in a subprocess. It runs in one
of a few threads, by calls that are short each, so that the event loop goes on. Tenants take turns too.
"""

from __future__ import annotations

import os
import sys
from asyncio import IncompleteReadError
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio
import msgspec
import structlog

from wopr.protocol.documents import Json
from wopr.protocol.errors import Unavailable
from wopr.protocol.offloading import Results, WorkFailed, WorkNeeded, encode_call, known_results
from wopr.runtime.subprocess_worker import HEADER, READY, main

T = TypeVar("T")

_START_SECONDS: Final = 30.0
# Calls of one tenant that wait, and results that one operation may need.
_MOST_WAITING: Final = 100
_MOST_RESULTS: Final = 1000
# When a client whose check could not begin is told to come back.
_RETRY_SECONDS: Final = 2
# Threads for redaction, and how long and how many calls of one tenant may wait for one.
_THREADS: Final = 2
_THREAD_WAIT_SECONDS: Final = 60.0
_MOST_WAITING_FOR_THREAD: Final = 10_000
_MIB: Final = 1024 * 1024

log = structlog.get_logger("wopr.subprocesses")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How many subprocesses there are, what one may use, and how long a call may wait for one."""

    size: int = 2
    deadline_seconds: float = 2.0
    wait_seconds: float = 10.0
    memory_mib: int = 512


class SubprocessPool:
    """Calls functions in subprocesses, each call with a deadline."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._idle: list[_Child] = []
        self._turns = Turns(limits.size)
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._thread_turns = Turns(_THREADS, _MOST_WAITING_FOR_THREAD)
        self._is_closed = False

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Call synchronous code, and do what it offloads in between.

        Raises `Unavailable` when that could not begin.
        """
        results = Results()
        while True:
            try:
                with known_results(results):
                    return work()
            except WorkNeeded as needed:
                await self.add(tenant, needed, results)

    async def add(self, tenant: str, needed: WorkNeeded, results: Results) -> None:
        """Do the work that synchronous code needs, and add its result or its failure.

        Raises `Unavailable` when the work could not begin.
        """
        if len(results) >= _MOST_RESULTS:
            results[needed.key] = WorkFailed(f"more than {_MOST_RESULTS} checks were needed")
            return
        try:
            if isinstance(needed.work, bytes):
                results[needed.key] = await self._answer(tenant, needed.work)
            else:
                results[needed.key] = await self.in_thread(tenant, needed.work)
        except WorkFailed as failed:
            results[needed.key] = failed

    async def in_thread(self, tenant: str, function: Callable[[], T]) -> T:
        """Call a function in a thread. Raises `Unavailable` when none is free for a long time."""
        async with self._thread_turns.turn(tenant, _THREAD_WAIT_SECONDS):
            return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def call(self, tenant: str, function: Callable[..., Json], *arguments: Json) -> Json:
        """Call a function of a module with JSON arguments. Raises `WorkFailed` or `Unavailable`."""
        return await self._answer(tenant, encode_call(function, *arguments))

    async def aclose(self) -> None:
        """End every subprocess."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().kill()

    async def _answer(self, tenant: str, body: bytes) -> Json:
        async with self._turns.turn(tenant, self._limits.wait_seconds):
            child = self._idle.pop() if self._idle else await _Child.start(self._limits)
            try:
                answer = await child.ask(body, self._limits.deadline_seconds)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await child.kill()
                raise
            if self._is_closed:
                await child.kill()
            else:
                self._idle.append(child)
        if "failed" in answer:
            raise WorkFailed(answer["failed"])
        return answer["result"]


class _Child:
    """One subprocess."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, limits: PoolLimits) -> _Child:
        """Start a subprocess and wait until it is ready. Raises `Unavailable` when it does not."""
        # Its own deadline is for the case that the host is gone: the host kills it before that.
        arguments = (limits.deadline_seconds + 5, limits.memory_mib * _MIB)
        try:
            process = await create_subprocess_exec(
                *(sys.executable, "-c", f"from {main.__module__} import main; main{arguments}"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env={"PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C.UTF-8"},
            )
        except OSError as fault:
            log.error("subprocess did not start", reason=fault.strerror)
            raise _not_started() from fault
        child = cls(process)
        try:
            with anyio.fail_after(_START_SECONDS):
                await child._read(len(READY))
        except BaseException as fault:
            with anyio.CancelScope(shield=True):
                await child.kill()
            if isinstance(fault, TimeoutError | IncompleteReadError):
                log.error("subprocess did not start", seconds=_START_SECONDS)
                raise _not_started() from fault
            raise
        return child

    async def ask(self, body: bytes, seconds: float) -> dict[str, Json]:
        """Send a call and read its result."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            with anyio.fail_after(seconds):
                stdin.write(HEADER.pack(len(body)) + body)
                await stdin.drain()
                (length,) = HEADER.unpack(await self._read(HEADER.size))
                answer = await self._read(length)
        except TimeoutError:
            raise WorkFailed(f"it takes longer than {seconds:g} s") from None
        except (IncompleteReadError, OSError) as ended:
            raise WorkFailed("it needs too much memory") from ended
        return msgspec.json.decode(answer, type=dict[str, Json])

    async def _read(self, count: int) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        return await stdout.readexactly(count)

    async def kill(self) -> None:
        """End the subprocess at once."""
        with suppress(ProcessLookupError):
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()


def _not_started() -> Unavailable:
    return Unavailable("the host could not start a subprocess for a check; try again")


class Turns:
    """Hands out places to tenants in turn; one tenant has at most half of them, and at least one."""

    def __init__(self, size: int, most_waiting: int = _MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._free = size
        self._share = max(1, size // 2)
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, tenant: str, wait_seconds: float) -> AsyncGenerator[None, None]:
        """Hold a place. Raises `Unavailable` when none gets free in time."""
        await self._wait(tenant, wait_seconds)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def _wait(self, tenant: str, seconds: float) -> None:
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._most_waiting:
            raise Unavailable(
                f"{self._most_waiting} other checks of this tenant wait for their turn; "
                f"try again in {_RETRY_SECONDS} seconds",
                retry_after=_RETRY_SECONDS,
            )
        place = anyio.Event()
        queue.append(place)
        self._grant()
        try:
            with anyio.move_on_after(seconds):
                await place.wait()
        except BaseException:
            if place.is_set():
                self._give_back(tenant)
            else:
                self._leave(tenant, place)
            raise
        if not place.is_set():
            self._leave(tenant, place)
            raise Unavailable(
                f"a check waited {seconds:g} s for its turn; try again in {_RETRY_SECONDS} seconds",
                retry_after=_RETRY_SECONDS,
            )

    def _leave(self, tenant: str, place: anyio.Event) -> None:
        queue = self._waiting[tenant]
        queue.remove(place)
        if not queue:
            del self._waiting[tenant]

    def _give_back(self, tenant: str) -> None:
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._grant()

    def _grant(self) -> None:
        """Give free places to the tenants that wait, the one that was served last comes last."""
        for tenant in list(self._waiting):
            if not self._free:
                return
            if self._held.get(tenant, 0) >= self._share:
                continue
            queue = self._waiting[tenant]
            queue.popleft().set()
            self._free -= 1
            self._held[tenant] = self._held.get(tenant, 0) + 1
            if queue:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
