from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost

COMMAND = [sys.executable, "-c", "from wopr.cli.main import main; main()"]


def on_a_terminal(host: FakeHost, *args: str, **variables: str) -> str:
    """Run a command whose stdout and stderr are a terminal, and return its output."""
    ours, theirs = pty.openpty()
    environment = {"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", **variables}
    with subprocess.Popen(
        [*COMMAND, *args, "--url", host.url], stdout=theirs, stderr=theirs, env=environment
    ):
        os.close(theirs)
        written = b""
        while chunk := _read(ours):
            written += chunk
    os.close(ours)
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux raises EIO when the other side has closed
        return b""


def ended(host: FakeHost) -> None:
    host.run()
    host.stream("r1", [host.event(0, "run.started"), host.event(1, "run.completed")])


def test_a_terminal_gets_colours(host: FakeHost) -> None:
    ended(host)

    assert "\x1b[32mrun.completed" in on_a_terminal(host, "runs", "tail", "r1")


def test_no_color_is_respected_on_a_terminal(host: FakeHost) -> None:
    ended(host)

    assert "\x1b[" not in on_a_terminal(host, "runs", "tail", "r1", NO_COLOR="1")


def test_hostile_text_cannot_control_a_terminal(host: FakeHost) -> None:
    host.run(status="failed", error={"code": "x", "message": "\x1b[2J[red]hi[/red]\x07"})

    written = on_a_terminal(host, "runs", "show", "r1")

    assert "[2J[red]hi[/red]" in written
    assert "\x1b[2J" not in written
    assert "\x07" not in written


def test_a_quiet_run_shows_progress_on_a_terminal(host: FakeHost) -> None:
    ended(host)

    written = on_a_terminal(host, "run", "hello")

    assert "\x1b[?25l" in written  # a spinner hides the cursor and shows it again
    assert "\x1b[?25h" in written
    assert "completed" in written


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let child processes receive interrupts, which background jobs of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_with_130_and_does_not_cancel_the_run(
    host: FakeHost,
) -> None:
    host.run(status="running")
    host.stream("r1", [host.event(0, "run.started")])

    with subprocess.Popen(
        [*COMMAND, "run", "hello", "--follow", "--url", host.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "the run continues" in errors
    assert "Traceback" not in errors
    assert not [call for call in host.calls() if call.endswith("/cancel")]
