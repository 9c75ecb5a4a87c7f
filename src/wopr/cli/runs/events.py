"""Output of a run's events, and waiting for its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Final

import msgspec
import typer
from rich.status import Status
from rich.text import Text

from wopr.api.events import Frame
from wopr.api.text import plain, plain_block, short
from wopr.cli.errors import CliError, ExitCode
from wopr.cli.output import console, error_console, note, print_json_line
from wopr.protocol.documents import UNSET, Document, Json, Unset, object_of, to_millis
from wopr.protocol.interrupts import INTERRUPT_KIND

if TYPE_CHECKING:
    from wopr.api.client import Client


_SUMMARY_LENGTH: Final = 160
# Members that other parts of the line show.
_SHOWN_ELSEWHERE: Final = frozenset({"nodeId", "runId"})
# The prefix of members that only the host uses.
_HOST_PREFIX: Final = "x-host-wopr-"
# Events after which a run waits.
_WAITING_EVENTS: Final = frozenset({"node.suspended", "run.paused"})
_ENDING_STYLES: Final = {
    "completed": "green",
    "granted": "green",
    "failed": "bold red",
    "rejected": "red",
    "breached": "bold red",
    "cancelled": "yellow",
    "suspended": "yellow",
}
_FAMILY_STYLES: Final = {
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
    """The members of an event that a line shows. A frame without an event may lack them."""

    timestamp: str | Unset = UNSET
    sequence: int | Unset = UNSET
    node_id: str | Unset = UNSET
    payload: Json | Unset = UNSET


def event_line(frame: Frame, started_at: str | None) -> Text:
    """Format a frame: offset from the start, sequence, type, node and a short summary."""
    line = _decode_line(frame)
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
    text = summary(payload)
    if text:
        parts.append(f"  {text}")
    return Text.assemble(*parts)


def summary(payload: Json) -> str:
    """Format the members of a payload as `name=value`.

    Members that only the host uses are omitted. An interrupt kind of the host replaces `custom`.
    """
    fields = object_of(payload)
    if INTERRUPT_KIND in fields:
        fields = fields | {"kind": fields[INTERRUPT_KIND]}
    parts = [
        _field(name, value)
        for name, value in fields.items()
        if name not in _SHOWN_ELSEWHERE
        and not name.startswith(_HOST_PREFIX)
        and value not in ({}, [], None)
    ]
    if not fields and payload not in ({}, [], None):
        return short(payload)
    text = "  ".join(parts)
    return text if len(text) <= _SUMMARY_LENGTH else text[: _SUMMARY_LENGTH - 1] + "…"


def chunk_text(frame: Frame) -> str:
    """Return the text of an `ai.message.chunk` frame."""
    document = decode_object(frame)
    payload = object_of(document.get("payload", document))
    end = "\n" if payload.get("isLast") is True else ""
    return plain_block(str(payload.get("chunk", ""))) + end


def snapshot_line(frame: Frame) -> Text:
    """Format a `state.snapshot` frame."""
    document = decode_object(frame)
    fields = object_of(document.get("payload", document))
    shown = {
        name: fields[name] for name in ("status", "currentNodeId", "variables") if name in fields
    }
    return Text.assemble(
        (f"{frame.id or '-':>5}  ", "dim"), ("state.snapshot", "cyan"), "  ", summary(shown)
    )


def _decode_line(frame: Frame) -> _Line:
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
    return _ENDING_STYLES.get(ending) or _FAMILY_STYLES.get(family, "")


def decode_object(frame: Frame) -> dict[str, object]:
    """Decode the data of a frame as a JSON object."""
    try:
        return msgspec.json.decode(frame.data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError):
        raise CliError(
            f"the server sent a {frame.event} frame that is not a JSON object",
            ExitCode.UNAVAILABLE,
            code="bad_answer",
        ) from None


async def show_events(
    client: Client,
    run_id: str,
    *,
    mode: str = "debug",
    after: int | None = None,
    started_at: str | None = None,
    as_json: bool = False,
    hints: bool = False,
) -> None:
    """Print a run's events until it ends. With `hints`, also how to answer its questions."""
    show = _show_json if as_json else _line_printer(started_at)
    async with aclosing(client.events(run_id, mode=mode, after=after)) as frames:
        async for frame in frames:
            show(frame)
            if hints and not as_json:
                _print_question_hint(run_id, frame)


async def wait_quietly(client: Client, run_id: str, *, is_silent: bool, hints: bool = True) -> None:
    """Wait for a run's end, with a spinner on a terminal. With `hints`, print how to answer."""
    with _spinner(run_id, is_silent=is_silent) as spinner:
        async with aclosing(client.events(run_id, mode="updates")) as frames:
            async for frame in frames:
                what = f"{frame.event} {_node(frame)}"
                if spinner is not None:
                    spinner.update(Text(plain(f"run {run_id}: {what}")))
                if frame.event in _WAITING_EVENTS and hints and not is_silent:
                    note(f"run {run_id} waits: {what} {summary(_payload(frame))}")
                    _print_question_hint(run_id, frame)


def _print_question_hint(run_id: str, frame: Frame) -> None:
    """Print how to answer a question, because the run waits for it."""
    if frame.event == "node.suspended" and "interruptId" in _payload(frame):
        name = f"{run_id} {_node(frame)}"
        note(
            f"the run waits for an answer: `wopr inbox show {name}`, "
            f"then `wopr inbox answer {name}`"
        )


def _spinner(run_id: str, *, is_silent: bool) -> AbstractContextManager[Status | None]:
    if is_silent or not sys.stderr.isatty():
        return nullcontext()
    return error_console().status(Text(plain(f"run {run_id}")))


def _show_json(frame: Frame) -> None:
    decode_object(frame)
    print_json_line(frame.data)


def _line_printer(started_at: str | None) -> Callable[[Frame], None]:
    out = console()

    def show(frame: Frame) -> None:
        if frame.event == "ai.message.chunk":
            typer.echo(chunk_text(frame), nl=False)
        elif frame.event == "state.snapshot":
            out.print(snapshot_line(frame), soft_wrap=True)
        else:
            out.print(event_line(frame, started_at), soft_wrap=True)

    return show


def _payload(frame: Frame) -> dict[str, object]:
    return object_of(decode_object(frame).get("payload"))


def _node(frame: Frame) -> str:
    return str(decode_object(frame).get("nodeId", ""))
