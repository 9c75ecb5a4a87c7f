"""Write KAHN events of the CI family. Copy this file; it needs only the standard library."""

from __future__ import annotations

import enum
import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

_Self = TypeVar("_Self", bound="_Log")

# --- shared with the sibling emitter, byte for byte: begin ---
# The only field that may be null. It is always written.
_NULLABLE = ("audit_checkpoint", "agent_id")


def now_ts() -> str:
    """Return the current time in UTC with milliseconds, such as `2026-01-31T08:00:00.000Z`."""
    seconds, millis = divmod(time.time_ns() // 1_000_000, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{millis:03d}Z"


def _event(
    name: str, run_id: str, ts: str | None, payload: dict[str, object], extra: dict[str, object]
) -> dict[str, object]:
    declared = {"ts": ts or now_ts(), "run_id": run_id, "event": name, **payload}
    clash = sorted(declared.keys() & extra.keys())
    if clash:
        raise TypeError(f"{name}: {', '.join(clash)} cannot be replaced by an extra field")
    return {
        key: value
        for key, value in {**declared, **extra}.items()
        if value is not None or (name, key) == _NULLABLE
    }


def _string_pattern(pattern: str) -> dict[str, object]:
    # In Python `$` alone would also match before a final newline.
    return {"type": "string", "pattern": f"^{pattern}$(?!\\n)"}


def _one_of(kind: type[enum.Enum]) -> dict[str, object]:
    return {"enum": [each.value for each in kind]}


_TEXT: dict[str, object] = {"type": "string"}
_NON_EMPTY: dict[str, object] = {"type": "string", "minLength": 1}
_FLAG: dict[str, object] = {"type": "boolean"}
_COUNT: dict[str, object] = {"type": "integer", "minimum": 0}
_SECONDS: dict[str, object] = {"type": "number", "minimum": 0}
_ENVELOPE: dict[str, object] = {
    "ts": _string_pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z"),
    "run_id": _string_pattern("[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}"),
}


def _variant(
    name: str, required: Mapping[str, object], optional: Mapping[str, object], **conditions: object
) -> dict[str, object]:
    rules = {"required": list(required), "properties": {**required, **optional}, **conditions}
    return {"if": {"properties": {"event": {"const": name}}}, "then": rules}


def _family(names: Iterable[str], variants: list[dict[str, object]]) -> dict[str, object]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["ts", "run_id", "event"],
        "properties": {**_ENVELOPE, "event": {"enum": list(names)}},
        "allOf": variants,
    }


def _build_validator(schema: Mapping[str, object]) -> Callable[[object], None]:
    # Imported here, because only validation needs more than the standard library.
    jsonschema = importlib.import_module("jsonschema")
    check: Callable[[object], None] = jsonschema.Draft202012Validator(schema).validate
    return check


class _Log:
    """An append-only log with one event per line."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        validate: bool = False,
        schema: Mapping[str, object] | None = None,
        lock: bool = False,
    ) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._validate = _build_validator(schema or self.schema()) if validate else None
        self._lock = lock
        self._one_writer = threading.Lock()
        # Unbuffered, so that each write is one system call that appends.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - `close` closes it

    @classmethod
    def schema(cls) -> dict[str, object]:
        """Return the JSON Schema that `validate=True` checks against."""
        raise NotImplementedError

    def emit(self, event: dict[str, object]) -> None:
        """Append one event as one line. The line is in the file when this returns."""
        if self._validate is not None:
            self._validate(event)
        text = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        line = text.encode("utf-8") + b"\n"
        with self._one_writer:
            if self._lock:
                self._write_locked(line)
            else:
                self._write(line)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _write_locked(self, line: bytes) -> None:
        fcntl = importlib.import_module("fcntl")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._write(line)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Flush the log to the disk and close it. A second call does nothing."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# --- shared with the sibling emitter, byte for byte: end ---

_TAIL_LENGTH = 4096


class Status(str, enum.Enum):  # noqa: UP042 - for producers on older Pythons
    """The status of a node of the graph."""

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    BLOCKED = "blocked"


class Outcome(str, enum.Enum):  # noqa: UP042 - for producers on older Pythons
    """The outcome of a run of the graph."""

    CLEAN = "clean"
    CLEAN_WITH_FLAKE = "clean_with_flake"
    PARTIAL = "partial"
    STUCK = "stuck"
    CATASTROPHIC = "catastrophic"


def run_start(
    run_id: str, total_nodes: int, *, ts: str | None = None, **extra: object
) -> dict[str, object]:
    """Build the first event of a run."""
    return _event("run_start", run_id, ts, {"total_nodes": total_nodes}, extra)


def node_transition(
    run_id: str,
    node_id: str,
    from_: Status | str,
    to: Status | str,
    *,
    attempt: int | None = None,
    reason: str | None = None,
    ts: str | None = None,
    **extra: object,
) -> dict[str, object]:
    """Build a change of status. `attempt` is required for the status `running`, and only allowed there."""
    payload: dict[str, object] = {
        "node_id": node_id,
        "from": Status(from_).value,
        "to": Status(to).value,
        "attempt": attempt,
        "reason": reason,
    }
    return _event("node_transition", run_id, ts, payload, extra)


def node_attempt(
    run_id: str,
    node_id: str,
    attempt: int,
    duration_s: float,
    converged: bool,
    done_when_results: Iterable[Mapping[str, object]],
    *,
    backoff_s: float | None = None,
    ts: str | None = None,
    **extra: object,
) -> dict[str, object]:
    """Build the end of an attempt. Only the last 4096 characters of each tail are kept."""
    payload: dict[str, object] = {
        "node_id": node_id,
        "attempt": attempt,
        "duration_s": duration_s,
        "converged": converged,
        "backoff_s": backoff_s,
        "done_when_results": [_result(each) for each in done_when_results],
    }
    return _event("node_attempt", run_id, ts, payload, extra)


def _result(result: Mapping[str, object]) -> dict[str, object]:
    result_fields = {key: value for key, value in result.items() if value is not None}
    tail = result_fields.get("tail")
    if isinstance(tail, str) and len(tail) > _TAIL_LENGTH:
        result_fields.update(tail=tail[-_TAIL_LENGTH:], truncated=True)
    return result_fields


def run_end(
    run_id: str,
    outcome: Outcome | str,
    done: int,
    failed: int,
    blocked: int,
    total_duration_s: float,
    *,
    total_attempts: int | None = None,
    flake_retries: int | None = None,
    exit_code: int | None = None,
    ts: str | None = None,
    **extra: object,
) -> dict[str, object]:
    """Build the last event of a run; an exit code of 0 is omitted."""
    payload: dict[str, object] = {
        "outcome": Outcome(outcome).value,
        "done": done,
        "failed": failed,
        "blocked": blocked,
        "total_duration_s": total_duration_s,
        "total_attempts": total_attempts,
        "flake_retries": flake_retries,
        "exit_code": exit_code or None,
    }
    return _event("run_end", run_id, ts, payload, extra)


def _ci_schema() -> dict[str, object]:
    node = {"node_id": _string_pattern("[a-z0-9][a-z0-9-]{0,63}")}
    ordinal = {"type": "integer", "minimum": 1}
    integer = {"type": "integer"}
    result = {
        "type": "object",
        "required": ["cmd", "rc", "duration_s"],
        "properties": {
            "cmd": _TEXT,
            "rc": integer,
            "duration_s": _SECONDS,
            "tail": {"type": "string", "maxLength": _TAIL_LENGTH},
            "truncated": _FLAG,
        },
        **_only_if({"rc": {"const": 0}}, {"not": {"required": ["tail"]}}),
        "dependentRequired": {"truncated": ["tail"]},
    }
    attempted = {**node, "attempt": ordinal, "duration_s": _SECONDS, "converged": _FLAG}
    counts = {name: _COUNT for name in ("done", "failed", "blocked")}
    rules = [
        _variant("run_start", {"total_nodes": _COUNT}, {}),
        _variant(
            "node_transition",
            {**node, "from": _one_of(Status), "to": _one_of(Status)},
            {"attempt": ordinal, "reason": _TEXT},
            **_only_if({"to": {"const": "running"}}, {"required": ["attempt"]}),
            **{"else": {"not": {"required": ["attempt"]}}},
        ),
        _variant(
            "node_attempt",
            {**attempted, "done_when_results": {"type": "array", "items": result}},
            {"backoff_s": _SECONDS},
            **_only_if({"attempt": {"const": 1}}, {"not": {"required": ["backoff_s"]}}),
        ),
        _variant(
            "run_end",
            {"outcome": _one_of(Outcome), **counts, "total_duration_s": _SECONDS},
            {"total_attempts": _COUNT, "flake_retries": _COUNT, "exit_code": integer},
            **_only_if(
                {"outcome": {"enum": ["stuck", "catastrophic"]}}, {"required": ["exit_code"]}
            ),
        ),
    ]
    return _family(["run_start", "node_transition", "node_attempt", "run_end"], rules)


def _only_if(holds: dict[str, object], then: dict[str, object]) -> dict[str, object]:
    return {"if": {"properties": holds, "required": list(holds)}, "then": then}


class Emitter(_Log):
    """Writes a log of the CI family; use it as a context manager, or call `close`.

    One process may write a log. If several processes write the same log, use `lock=True`, which
    takes an advisory lock for each line.
    """

    @classmethod
    def schema(cls) -> dict[str, object]:
        """Return the JSON Schema that `validate=True` checks against."""
        return _ci_schema()
