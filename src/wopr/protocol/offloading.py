"""Long work that synchronous code delegates to a subprocess or a thread.

Synchronous code calls `offload` or `offload_to_thread`. The first call raises `WorkNeeded`, because
the result is not known yet. The asynchronous caller does the work and calls the synchronous code
again with the result: see `wopr.process.subprocess_pool`.

A subprocess can be killed. A thread is for work whose duration is bounded by its input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, cast

import msgspec

from wopr.protocol.documents import Json

T = TypeVar("T")


class WorkNeeded(Exception):
    """Synchronous code needs the result of a call in a subprocess, or of a function in a thread."""

    def __init__(self, key: bytes, work: bytes | Callable[[], Json]) -> None:
        super().__init__("the result of offloaded work is needed")
        self.key = key
        self.work = work


class WorkFailed(Exception):
    """The work was stopped at its deadline or ran out of memory. It would fail again.

    Work that cannot begin because too much other work waits raises `Unavailable` instead.
    """


class Results(dict[bytes, "Json | WorkFailed"]):
    """The results of an operation so far, and cached facts about its values.

    The values are kept, so that their identities stay valid during the operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.computed: dict[tuple[Callable[[Json], object], int], tuple[Json, object]] = {}


_results: ContextVar[Mapping[bytes, Json | WorkFailed] | None] = ContextVar(
    "results of offloaded work", default=None
)


def offload(function: Callable[..., Json], *arguments: Json, key: bytes = b"") -> Json:
    """Return the result of a module's function for JSON arguments, computed by a subprocess.

    With a `key` that is equal for equal calls, a call whose result is known is not encoded again.
    Raises `WorkNeeded` while the result is not known, and `WorkFailed` if the work failed.
    """
    if key:
        hashed = hashlib.sha256(key).digest()
        results = _results.get()
        if results is not None and hashed in results:
            return _result(hashed, b"")
        raise WorkNeeded(hashed, encode_call(function, *arguments))
    body = encode_call(function, *arguments)
    return _result(hashlib.sha256(body).digest(), body)


def compute_once(function: Callable[[Json], T], value: Json) -> T:
    """Return the result of a function for a value, computed once in an operation."""
    results = _results.get()
    if not isinstance(results, Results):
        return function(value)
    name = (function, id(value))
    if name not in results.computed:
        results.computed[name] = (value, function(value))
    return cast("T", results.computed[name][1])


def offload_to_thread(function: Callable[[], Json], key: bytes) -> Json:
    """Return the result of a function, called by a thread.

    The key is equal for equal work. Raises the same errors as `offload`.
    """
    return _result(hashlib.sha256(key).digest(), function)


def _result(key: bytes, work: bytes | Callable[[], Json]) -> Json:
    results = _results.get()
    if results is None or key not in results:
        raise WorkNeeded(key, work)
    result = results[key]
    if isinstance(result, WorkFailed):
        raise result
    return result


def encode_call(function: Callable[..., Json], *arguments: Json) -> bytes:
    """Encode a call of a function by its name, for a subprocess."""
    return msgspec.json.encode([function.__module__, function.__qualname__, arguments])


@contextmanager
def known_results(results: Mapping[bytes, Json | WorkFailed]) -> Generator[None, None, None]:
    """Let `offload` find these results within the block."""
    token = _results.set(results)
    try:
        yield
    finally:
        _results.reset(token)
