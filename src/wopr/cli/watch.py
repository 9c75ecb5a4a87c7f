"""Watch a run until it ends: its events as they happen, or quietly behind a spinner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Final

import typer
from rich.status import Status
from rich.text import Text

from wopr.cli.documents import object_of
from wopr.cli.event_lines import chunk_text, event_line, snapshot_line, summary
from wopr.cli.output import console, error_console, note, plain, print_json_line
from wopr.cli.stream import Frame, decode_object

if TYPE_CHECKING:
    from wopr.cli.connection import Client

_WAITS: Final = frozenset({"node.suspended", "run.paused"})


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
    """Print a run's events as they happen, until it ends; hints say what it waits for."""
    show = _show_json if as_json else _line_printer(started_at)
    async with aclosing(client.events(run_id, mode=mode, after=after)) as frames:
        async for frame in frames:
            show(frame)
            if hints and not as_json:
                _tell_question(run_id, frame)


async def wait_quietly(client: Client, run_id: str, *, is_silent: bool, hints: bool = True) -> None:
    """Wait for a run's end. On a terminal a spinner shows progress; hints say what it waits for."""
    with _spinner(run_id, is_silent=is_silent) as spinner:
        async with aclosing(client.events(run_id, mode="updates")) as frames:
            async for frame in frames:
                told = f"{frame.event} {_node(frame)}"
                if spinner is not None:
                    spinner.update(Text(plain(f"run {run_id}: {told}")))
                if frame.event in _WAITS and hints and not is_silent:
                    note(f"run {run_id} waits: {told} {summary(_payload(frame))}")
                    _tell_question(run_id, frame)


def _tell_question(run_id: str, frame: Frame) -> None:
    """Say where a question is answered: whoever only watches would wait for ever."""
    if frame.event == "node.suspended" and "interruptId" in _payload(frame):
        name = f"{run_id} {_node(frame)}"
        note(f"it waits for an answer: `wopr inbox show {name}`, then `wopr inbox answer {name}`")


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
