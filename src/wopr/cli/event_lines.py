"""One event of a run as one line for people."""

from __future__ import annotations

from typing import Final

import msgspec
from rich.text import Text

from wopr.cli.documents import object_of
from wopr.cli.output import plain, plain_block, short
from wopr.cli.stream import Frame, decode_object
from wopr.protocol.documents import UNSET, Document, Json, Unset
from wopr.protocol.interrupts import INTERRUPT_KIND
from wopr.protocol.times import to_millis

_SUMMARY_LENGTH: Final = 160
# Shown elsewhere on the line, or the same on every line.
_SHOWN: Final = frozenset({"nodeId", "runId"})
# How members begin that only the host reads.
_OF_THE_HOST: Final = "x-host-wopr-"
_ENDINGS: Final = {
    "completed": "green",
    "granted": "green",
    "failed": "bold red",
    "rejected": "red",
    "breached": "bold red",
    "cancelled": "yellow",
    "suspended": "yellow",
}
_FAMILIES: Final = {
    "run": "bold cyan",
    "node": "blue",
    "agent": "magenta",
    "runOrchestrator": "magenta",
    "interrupt": "yellow",
    "approval": "yellow",
    "clarification": "yellow",
    "conversation": "yellow",
    "replay": "red",
}


class _Line(Document, frozen=True, kw_only=True):
    """What a line shows of an event; a notice that is not of the log may lack any of it."""

    timestamp: str | Unset = UNSET
    sequence: int | Unset = UNSET
    node_id: str | Unset = UNSET
    payload: Json | Unset = UNSET


def event_line(frame: Frame, started_at: str | None) -> Text:
    """Render a frame: offset from the start, sequence, type, node and a short summary."""
    line = _read(frame)
    payload = decode_object(frame) if line.payload is UNSET else line.payload
    sequence = "-" if line.sequence is UNSET else str(line.sequence)
    parts: list[tuple[str, str] | str] = [
        (f"{_offset(line.timestamp, started_at):>9}", "dim"),
        (f"{sequence:>5}  ", "dim"),
        (plain(frame.event), _style(frame.event)),
    ]
    node = line.node_id if isinstance(line.node_id, str) else _node_of(payload)
    if node:
        parts.append((f"  {plain(node)}", "bold"))
    told = summary(payload)
    if told:
        parts.append(f"  {told}")
    return Text.assemble(*parts)


def summary(payload: Json) -> str:
    """The payload's fields as `name=value`, an object's own fields behind its name.

    Members that only the host reads are left out. An interrupt kind of the host's own is shown in
    place of `custom`.
    """
    fields = object_of(payload)
    if INTERRUPT_KIND in fields:
        fields = fields | {"kind": fields[INTERRUPT_KIND]}
    parts = [
        _field(name, value)
        for name, value in fields.items()
        if name not in _SHOWN and not name.startswith(_OF_THE_HOST) and value not in ({}, [], None)
    ]
    if not fields and payload not in ({}, [], None):
        return short(payload)
    text = "  ".join(parts)
    return text if len(text) <= _SUMMARY_LENGTH else text[: _SUMMARY_LENGTH - 1] + "…"


def chunk_text(frame: Frame) -> str:
    """The piece of a message that an `ai.message.chunk` frame brings."""
    document = decode_object(frame)
    payload = object_of(document.get("payload", document))
    end = "\n" if payload.get("isLast") is True else ""
    return plain_block(str(payload.get("chunk", ""))) + end


def snapshot_line(frame: Frame) -> Text:
    """The run's state as a `state.snapshot` frame gives it."""
    document = decode_object(frame)
    fields = object_of(document.get("payload", document))
    shown = {
        name: fields[name] for name in ("status", "currentNodeId", "variables") if name in fields
    }
    return Text.assemble(
        (f"{frame.id or '-':>5}  ", "dim"), ("state.snapshot", "cyan"), "  ", summary(shown)
    )


def _read(frame: Frame) -> _Line:
    try:
        return msgspec.json.decode(frame.data, type=_Line)
    except msgspec.ValidationError:
        return _Line()
    except (msgspec.DecodeError, UnicodeError):
        decode_object(frame)
        raise


def _field(name: str, value: Json) -> str:
    inner = " ".join(f"{plain(key)}={short(part)}" for key, part in object_of(value).items())
    return f"{plain(name)} {inner}" if inner else f"{plain(name)}={short(value)}"


def _node_of(payload: Json) -> str | None:
    node = object_of(payload).get("nodeId")
    return node if isinstance(node, str) else None


def _offset(timestamp: str | Unset, started_at: str | None) -> str:
    if timestamp is UNSET or started_at is None:
        return ""
    try:
        millis = to_millis(timestamp) - to_millis(started_at)
    except (ValueError, OverflowError):
        return ""
    return f"+{millis / 1000:.3f}s"


def _style(event_type: str) -> str:
    family, _, ending = event_type.partition(".")
    return _ENDINGS.get(ending) or _FAMILIES.get(family, "")
