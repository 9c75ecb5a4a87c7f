"""A terminal that runs the commands of a document and compares their output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.documents.fences import Command, matches

DEADLINE_SECONDS = 300
# Commands whose output changes during a run: they are repeated until it is as shown.
LOOKS = ("wopr inbox list", "wopr inbox show", "wopr runs list")


class Terminal:
    """A terminal in one directory, like that of a new user."""

    def __init__(self, directory: Path, commands: Path | None = None) -> None:
        """Open a terminal in a directory; `commands` is the folder of the `wopr` to use."""
        self.directory = directory
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WOPR_", "OTEL_", "PYTEST_"))
        } | {
            "PATH": f"{commands or Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "WOPR_PORT": "0",
        }
        self.serving: subprocess.Popen[str] | None = None
        # The ids of the document, and those of this terminal instead of them.
        self.ids: dict[str, str] = {}

    def write(self, name: str, text: str) -> None:
        """Append code to a file."""
        with (self.directory / name).open("a") as file:
            file.write(text)

    def type(self, command: Command) -> None:
        """Run a command and compare its output; read-only commands may be repeated."""
        assigned = re.fullmatch(r"(\w+)=\$\((.*)\)", command.line)
        if assigned is not None:
            self.variables[assigned[1]] = self._output(assigned[2], stderr=None).strip()
            return
        line = self._with_ids(command.line)
        output = self._output(line)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not matches(command.printed, output, self.ids):
            is_over = not command.line.startswith(LOOKS) or time.monotonic() > deadline
            assert not is_over, f"{command.line}\n{output}"
            output = self._output(line)

    def _with_ids(self, line: str) -> str:
        for shown, own in self.ids.items():
            line = line.replace(shown, own)
        return line

    def _output(self, line: str, stderr: int | None = subprocess.STDOUT) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.directory,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    def port(self) -> str:
        """Return the port of the host that serves here."""
        credentials = json.loads((self.directory / "data" / "credentials.json").read_text())
        return str(credentials["url"]).rpartition(":")[2]

    def serve(self, command: Command) -> None:
        """Start a server, and wait until it has printed what the document shows."""
        self.serving = subprocess.Popen(
            ["bash", "-c", f"exec {command.line}"],
            cwd=self.directory,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.serving.stdout is not None
        printed = ""
        for line in self.serving.stdout:
            printed += line
            if matches(command.printed, printed):
                return
        raise AssertionError(printed)

    def leave(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server."""
        if self.serving is not None:
            self.serving.send_signal(how)
            self.serving.communicate(timeout=DEADLINE_SECONDS)
            self.serving = None
