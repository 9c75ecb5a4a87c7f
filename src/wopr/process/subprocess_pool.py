"""A small pool of subprocesses for work that may take too long.

A call of a compiled library blocks the interpreter and cannot be stopped. Here it runs in a
subprocess that is killed at a deadline and replaced. Subprocesses are started when they are first
needed, get no secret from the environment of the host, and have a memory limit. Tenants are served
in rotation: the calls of one tenant use at most half of the subprocesses, and its queue is limited.

Two kinds of work need the memory of the host and run in threads, also with tenants in rotation:
redaction of large texts, in short calls, and checks of large definitions, one at a time.
"""

from __future__ import annotations

import os
import sys
from asyncio import IncompleteReadError
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio
import msgspec
import structlog

from wopr.process.subprocess_worker import HEADER, READY, main
from wopr.process.tenant_slots import FairSlots
from wopr.protocol.documents import Json
from wopr.protocol.errors import Unavailable
from wopr.protocol.offloading import Results, WorkFailed, WorkNeeded, encode_call, known_results

T = TypeVar("T")

_START_SECONDS: Final = 30.0
# Results that one operation may need.
_MAX_RESULTS: Final = 1000
# Threads for redaction, and how long and how many calls of one tenant may wait for one.
_THREADS: Final = 2
_THREAD_WAIT_SECONDS: Final = 60.0
_MAX_WAITING_FOR_THREAD: Final = 10_000
# How long the check of a large definition waits for others, and when a client may try again.
_LARGE_CHECK_WAIT_SECONDS: Final = 30
_LARGE_CHECK_RETRY_SECONDS: Final = 10
_MIB: Final = 1024 * 1024

log = structlog.get_logger("wopr.subprocesses")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Limits of the pool: the number, deadline and memory of subprocesses, and the wait for one."""

    size: int = 2
    deadline_seconds: float = 2.0
    wait_seconds: float = 10.0
    memory_mib: int = 512


class SubprocessPool:
    """Calls functions in subprocesses, each call with a deadline."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._idle: list[_Subprocess] = []
        self._slots = FairSlots(limits.size)
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._thread_slots = FairSlots(_THREADS, _MAX_WAITING_FOR_THREAD)
        self._large_check_slots = FairSlots(1)
        self._is_closed = False

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Call synchronous code, and do the work that it offloads.

        Raises `Unavailable` when that work could not begin.
        """
        results = Results()
        while True:
            try:
                with known_results(results):
                    return work()
            except WorkNeeded as needed:
                await self.add_result(tenant, needed, results)

    async def add_result(self, tenant: str, needed: WorkNeeded, results: Results) -> None:
        """Do the work that synchronous code needs, and add its result or its failure to `results`.

        Raises `Unavailable` when the work could not begin.
        """
        if len(results) >= _MAX_RESULTS:
            results[needed.key] = WorkFailed(f"more than {_MAX_RESULTS} checks were needed")
            return
        try:
            if isinstance(needed.work, bytes):
                results[needed.key] = await self._call(tenant, needed.work)
            else:
                results[needed.key] = await self.in_thread(tenant, needed.work)
        except WorkFailed as failed:
            results[needed.key] = failed

    async def in_thread(self, tenant: str, function: Callable[[], T]) -> T:
        """Call a function in a thread. Raises `Unavailable` when none is free for a long time."""
        async with self._thread_slots.slot(tenant, _THREAD_WAIT_SECONDS):
            return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def check_large(self, tenant: str, check: Callable[[], T]) -> T:
        """Check a large definition or manifest in a thread, one at a time.

        Raises `Unavailable` when other checks take too long. A check takes some seconds at most, by
        the limits of definitions.
        """
        try:
            async with self._large_check_slots.slot(tenant, _LARGE_CHECK_WAIT_SECONDS):
                return await anyio.to_thread.run_sync(check)
        except Unavailable as busy:
            retry = _LARGE_CHECK_RETRY_SECONDS
            message = f"The host checks other large definitions. Try again in {retry} seconds."
            raise Unavailable(message, retry_after=retry) from busy

    async def call(self, tenant: str, function: Callable[..., Json], *arguments: Json) -> Json:
        """Call a function of a module with JSON arguments. Raises `WorkFailed` or `Unavailable`."""
        return await self._call(tenant, encode_call(function, *arguments))

    async def aclose(self) -> None:
        """End every subprocess."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().kill()

    async def _call(self, tenant: str, body: bytes) -> Json:
        async with self._slots.slot(tenant, self._limits.wait_seconds):
            subprocess = self._idle.pop() if self._idle else await _Subprocess.start(self._limits)
            try:
                result = await subprocess.call(body, self._limits.deadline_seconds)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await subprocess.kill()
                raise
            if self._is_closed:
                await subprocess.kill()
            else:
                self._idle.append(subprocess)
        if "failed" in result:
            raise WorkFailed(result["failed"])
        return result["result"]


class _Subprocess:
    """One subprocess."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, limits: PoolLimits) -> _Subprocess:
        """Start a subprocess and wait until it is ready. Raises `Unavailable` when it does not."""
        # The deadline in the subprocess is for the case that the host has died. A live host kills
        # it earlier.
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
            raise _start_error() from fault
        subprocess = cls(process)
        try:
            with anyio.fail_after(_START_SECONDS):
                await subprocess._read(len(READY))
        except BaseException as fault:
            with anyio.CancelScope(shield=True):
                await subprocess.kill()
            if isinstance(fault, TimeoutError | IncompleteReadError):
                log.error("subprocess did not start", seconds=_START_SECONDS)
                raise _start_error() from fault
            raise
        return subprocess

    async def call(self, body: bytes, seconds: float) -> dict[str, Json]:
        """Send a call and read its result."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            with anyio.fail_after(seconds):
                stdin.write(HEADER.pack(len(body)) + body)
                await stdin.drain()
                (length,) = HEADER.unpack(await self._read(HEADER.size))
                result = await self._read(length)
        except TimeoutError:
            raise WorkFailed(f"it takes longer than {seconds:g} s") from None
        except (IncompleteReadError, OSError) as ended:
            raise WorkFailed("it needs too much memory") from ended
        return msgspec.json.decode(result, type=dict[str, Json])

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


def _start_error() -> Unavailable:
    return Unavailable("The host could not start a subprocess for a check. Try again.")
