"""Write KAHN events of the agent family. Copy this file; it needs only the standard library."""

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

_SUMMARY_LENGTH = 2048


class AgentStatus(str, enum.Enum):  # noqa: UP042 - for producers on older Pythons
    """The status of an agent."""

    THINKING = "thinking"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    RESPONSE = "response"
    REFLECT = "reflect"
    BLOCKED_ON_CLARIFICATION = "blocked-on-clarification"
    CONVERGED = "converged"
    FAILED = "failed"


class AgentOutcome(str, enum.Enum):  # noqa: UP042 - for producers on older Pythons
    """The outcome of an agent's run; only `converged` is success."""

    CONVERGED = "converged"
    PARTIAL = "partial"
    ESCAPED = "escaped"
    ABORTED = "aborted"


class AuditResult(str, enum.Enum):  # noqa: UP042 - for producers on older Pythons
    """The result of a checkpoint; `warn` does not count as a failure."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"


def agent_run_start(
    run_id: str,
    agent_id: str,
    task: str,
    *,
    model: str | None = None,
    ts: str | None = None,
    **extra: object,
) -> dict[str, object]:
    """Build the first event of an agent, with its task."""
    payload: dict[str, object] = {"agent_id": agent_id, "task": task, "model": model}
    return _event("agent_run_start", run_id, ts, payload, extra)


def agent_transition(
    run_id: str,
    agent_id: str,
    step: int,
    from_: AgentStatus | str,
    to: AgentStatus | str,
    *,
    reason: str | None = None,
    ts: str | None = None,
    **extra: object,
) -> dict[str, object]:
    """Build a change of status. `step` never decreases for one agent in one run."""
    payload: dict[str, object] = {
        "agent_id": agent_id,
        "step": step,
        "from": AgentStatus(from_).value,
        "to": AgentStatus(to).value,
        "reason": reason,
    }
    return _event("agent_transition", run_id, ts, payload, extra)


def tool_invocation(
    run_id: str,
    agent_id: str,
    step: int,
    tool_name: str,
    duration_s: float,
    ok: bool,
    *,
    input_summary: str | None = None,
    output_summary: str | None = None,
    error: str | None = None,
    ts: str | None = None,
    **extra: object,
) -> dict[str, object]:
    """Build the event of a tool call. Redact the texts before; they are cut to 2048 characters."""
    payload: dict[str, object] = {
        "agent_id": agent_id,
        "step": step,
        "tool_name": tool_name,
        "duration_s": duration_s,
        "ok": ok,
        "input_summary": _cut(input_summary),
        "output_summary": _cut(output_summary),
        "error": _cut(error),
    }
    return _event("tool_invocation", run_id, ts, payload, extra)


def audit_checkpoint(
    run_id: str,
    agent_id: str | None,
    checkpoint_id: str,
    result: AuditResult | str,
    duration_s: float,
    *,
    evidence: Mapping[str, object] | None = None,
    ts: str | None = None,
    **extra: object,
) -> dict[str, object]:
    """Build the result of a checkpoint. If `agent_id` is None, the run was checked."""
    payload: dict[str, object] = {
        "agent_id": agent_id,
        "checkpoint_id": checkpoint_id,
        "result": AuditResult(result).value,
        "duration_s": duration_s,
        "evidence": None if evidence is None else dict(evidence),
    }
    return _event("audit_checkpoint", run_id, ts, payload, extra)


def agent_run_end(
    run_id: str,
    agent_id: str,
    outcome: AgentOutcome | str,
    total_steps: int,
    total_tool_calls: int,
    total_audit_checkpoints: int,
    audits_passed: int,
    audits_failed: int,
    total_duration_s: float,
    *,
    convergence_score: float | None = None,
    ts: str | None = None,
    **extra: object,
) -> dict[str, object]:
    """Build the last event of an agent, with its outcome and totals."""
    payload: dict[str, object] = {
        "agent_id": agent_id,
        "outcome": AgentOutcome(outcome).value,
        "total_steps": total_steps,
        "total_tool_calls": total_tool_calls,
        "total_audit_checkpoints": total_audit_checkpoints,
        "audits_passed": audits_passed,
        "audits_failed": audits_failed,
        "total_duration_s": total_duration_s,
        "convergence_score": convergence_score,
    }
    return _event("agent_run_end", run_id, ts, payload, extra)


def _cut(text: str | None) -> str | None:
    if text is None or len(text) <= _SUMMARY_LENGTH:
        return text
    return text[: _SUMMARY_LENGTH - 1] + "\u2026"


def _agent_schema() -> dict[str, object]:
    agent = {"agent_id": _string_pattern("[a-z0-9][a-z0-9:-]{0,63}")}
    at_step = {**agent, "step": _COUNT}
    totals = ("total_steps", "total_tool_calls", "total_audit_checkpoints")
    ends = {name: _COUNT for name in (*totals, "audits_passed", "audits_failed")}
    variants: dict[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
        "agent_run_start": ({**agent, "task": _NON_EMPTY}, {"model": _TEXT}),
        "agent_transition": (
            {**at_step, "from": _one_of(AgentStatus), "to": _one_of(AgentStatus)},
            {"reason": _TEXT},
        ),
        "tool_invocation": (
            {**at_step, "tool_name": _NON_EMPTY, "duration_s": _SECONDS, "ok": _FLAG},
            {
                "input_summary": _TEXT,
                "output_summary": {"type": "string", "maxLength": _SUMMARY_LENGTH},
                "error": _TEXT,
            },
        ),
        "audit_checkpoint": (
            {
                "checkpoint_id": _string_pattern("[a-z0-9][a-z0-9:.-]{0,127}"),
                "result": _one_of(AuditResult),
                "duration_s": _SECONDS,
            },
            {
                "agent_id": {"anyOf": [agent["agent_id"], {"type": "null"}]},
                "evidence": {"type": "object"},
            },
        ),
        "agent_run_end": (
            {**agent, "outcome": _one_of(AgentOutcome), **ends, "total_duration_s": _SECONDS},
            {"convergence_score": {"type": "number", "minimum": 0, "maximum": 1}},
        ),
    }
    rules = [_variant(name, *fields) for name, fields in variants.items()]
    return _family(variants, rules)


class AgentEmitter(_Log):
    """Writes a log of the agent family; use it as a context manager, or call `close`.

    One process may write a log. If several processes write the same log, use `lock=True`, which
    takes an advisory lock for each line.
    """

    @classmethod
    def schema(cls) -> dict[str, object]:
        """Return the JSON Schema that `validate=True` checks against."""
        return _agent_schema()
