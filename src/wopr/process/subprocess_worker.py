"""A subprocess that calls functions for its host, one after the other, and can be killed.

It reads a call from its standard input and writes the result to its standard output, each as JSON
after its length. It ends when its input is closed. It also ends at the deadline of a call, so that
no subprocess remains after the host was killed.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from typing import BinaryIO, Final

import msgspec

from wopr.protocol.documents import Json

HEADER: Final = struct.Struct("!Q")
READY: Final = b"r"


def main(deadline_seconds: float, memory_bytes: int) -> None:
    """Process calls until the input is closed."""
    # A terminal sends its interrupt to the host and to its subprocesses. The host handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Imported before the memory limit is set.
    for module in ("wopr.protocol.json_schema.validation", "wopr.engine.cel.expressions"):
        import_module(module)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    calls, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a library prints must not be mixed with the results
    results.write(READY)
    results.flush()
    while (body := _read(calls)) is not None:
        signal.setitimer(signal.ITIMER_REAL, deadline_seconds)
        result = msgspec.json.encode(_call(body))
        signal.setitimer(signal.ITIMER_REAL, 0)
        results.write(HEADER.pack(len(result)) + result)
        results.flush()


def _read(calls: BinaryIO) -> bytes | None:
    header = calls.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = calls.read(length)
    return body if len(body) == length else None


def _call(body: bytes) -> Json:
    """Call a function by its name. The host sets the name; only the arguments come from users."""
    module, name, arguments = msgspec.json.decode(body, type=tuple[str, str, list[Json]])
    function: Callable[..., Json] = getattr(import_module(module), name)
    try:
        return {"result": function(*arguments)}
    except MemoryError:
        return {"failed": "it needs too much memory"}
    except Exception as error:  # the outer edge of the call
        return {"failed": f"it failed with {type(error).__name__}"}
