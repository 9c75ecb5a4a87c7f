"""Start `wopr` commands in processes that are forked from one that has imported the program.

The tests start more than a thousand hosts, and importing the program takes most of the time of a
start. A forked process is real: it has its own memory, files and signals. Tests of the installed
command itself start it like users do.

A process that imports the libraries of the model providers takes seconds of processor time for that,
so hosts with models are forked from a second server, which has imported those too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Final, NoReturn, Protocol

import typer.main

_ROOT: Final = Path(__file__).parents[2]
WOPR: Final = Path(sys.executable).parent / "wopr"
_IMPORTED: Final = (
    "wopr.cli.main",
    "wopr.cli.operate.serve",
    "wopr.console.app",
    "wopr.http.server",
    "wopr.store.postgres.store",
    "wopr.store.sqlite.store",
    # What the program imports while it starts.
    "anyio._backends._asyncio",
    "procrastinate.builtin_tasks",
    "typer._adapters",
    "uvicorn.lifespan.off",
    "uvicorn.loops.uvloop",
    "wopr.process.yaml_loader",
)
_MODELS: Final = (
    "httpx2",
    "pydantic_ai.models.anthropic",
    "pydantic_ai.models.google",
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.anthropic",
    "pydantic_ai.providers.google",
    "pydantic_ai.providers.openai",
    "pydantic_ai.providers.openai_compatible",
    "wopr.agents.models.pydantic_adapter",
)
# Variables with these prefixes are read while modules are imported.
_READ_AT_IMPORT: Final = ("PYTHON", "OTEL_", "COVERAGE_", "COV_CORE_", "LD_")
_RUN_SECONDS: Final = 120.0
_MAX_BYTES: Final = 256 * 1024
_STATUS: Final = struct.Struct("=i")
_PID: Final = struct.Struct("=i")


class Process(Protocol):
    """The methods that the tests use of a started process."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def communicate(self, input: str | None = None, timeout: float | None = None) -> object: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    stderr: IO[str],
    folder: Path | None = None,
) -> Process:
    """Start a `wopr` command with these variables and captured output."""
    if _is_same(variables):
        server = _server(bool(variables.get("WOPR_MODEL_SERVERS")))
        return server.start(arguments, variables, stderr, folder or Path.cwd())
    return subprocess.Popen(
        [WOPR, *arguments],
        env=variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def run(
    arguments: Sequence[str], variables: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a `wopr` command with these variables, without input, and wait for its end."""
    with tempfile.TemporaryFile("w+") as stderr:
        process = start(arguments, variables, stderr, folder)
        assert process.stdout is not None
        with process.stdout as stdout:
            printed = stdout.read()
        process.wait(_RUN_SECONDS)
        assert process.returncode is not None
        stderr.seek(0)
        return subprocess.CompletedProcess(
            [str(WOPR), *arguments], process.returncode, printed, stderr.read()
        )


def _is_same(variables: Mapping[str, str]) -> bool:
    """Return whether modules are imported alike with these variables and the current ones."""
    own, other = (
        {
            name: value
            for name, value in each.items()
            if name.startswith(_READ_AT_IMPORT) and name != "PYTHONPATH"
        }
        for each in (os.environ, variables)
    )
    return own == other and not any(name.startswith("COV") for name in own)


class ForkedProcess:
    """A process forked by the server. The server waits for it, and reports its exit code."""

    def __init__(self, pid: int, stdout: int, status: int) -> None:
        self.pid = pid
        self.stdout: IO[str] = os.fdopen(stdout)
        self.returncode: int | None = None
        self._status = status

    def __del__(self) -> None:
        """End the process after a failed test, so that it disturbs no other test."""
        if self.poll() is None:
            self.kill()
            os.close(self._status)
        self.stdout.close()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises `subprocess.TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("wopr", timeout or 0.0)
        return code

    def communicate(self, input: str | None = None, timeout: float | None = None) -> None:
        """Wait for the end, and drop the output."""
        deadline = None if timeout is None else time.monotonic() + timeout
        printed = self.stdout.fileno()
        while self.returncode is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([printed, self._status], [], [], left)
            if self._status in ready:
                self._ended(0)
            elif not ready:
                raise subprocess.TimeoutExpired("wopr", timeout or 0.0)
            elif not os.read(printed, 65536):
                self.wait(left)
        self.stdout.close()

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            told = os.read(self._status, _STATUS.size)
            os.close(self._status)
            self.returncode = _STATUS.unpack(told)[0] if told else -signal.SIGKILL
        return self.returncode


class _Server:
    """The forking process, as seen by a test process."""

    def __init__(self, names: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            other.set_inheritable(True)
            command = [sys.executable, "-m", "tests.support.forked", str(other.fileno()), *names]
            # The tests change their directory, but `tests` is imported from the repository.
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], cwd=_ROOT)

    def start(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        stderr: IO[str],
        folder: Path,
    ) -> ForkedProcess:
        """Start a command."""
        request = json.dumps([list(arguments), dict(variables), str(folder)]).encode()
        printed, stdout = os.pipe()
        ended, status = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._control, [request], [stdout, stderr.fileno(), status])
                [pid] = _PID.unpack(self._control.recv(_PID.size))
        finally:
            os.close(stdout)
            os.close(status)
        return ForkedProcess(pid, printed, ended)

    def stop(self) -> None:
        """Stop the server and what it started."""
        self._control.close()
        self._process.wait()


@cache
def _server(has_models: bool) -> _Server:
    server = _Server(_MODELS if has_models else ())
    atexit.register(server.stop)
    return server


# The following code runs in the server.


def _fork_on_request(control: socket.socket) -> tuple[list[str], dict[str, str], str] | None:
    """Fork for each request; return the request in a forked process, None without more."""
    statuses: dict[int, int] = {}

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = statuses.pop(ended[0])
                with suppress(BrokenPipeError):
                    os.write(status, _STATUS.pack(os.waitstatus_to_exitcode(ended[1])))
                os.close(status)

    signal.signal(signal.SIGCHLD, pass_on)
    while True:
        request, files, _, _ = socket.recv_fds(control, _MAX_BYTES, 3)
        if not request:
            for pid in list(statuses):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return None
        # The start of a process is reported before its end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os.dup2(files[0], 1)
            os.dup2(files[1], 2)
            os.closerange(3, max(4096, control.fileno() + 1))
            arguments, variables, folder = json.loads(request)
            return arguments, variables, folder
        statuses[pid] = files[2]
        os.close(files[0])
        os.close(files[1])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        control.send(_PID.pack(pid))


def _become(arguments: list[str], variables: dict[str, str], folder: str) -> None:
    """Make this process equal to a separately started one."""
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = [str(WOPR), *arguments]
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0:1] = [str(WOPR.parent), *(place for place in own if place not in ("", *sys.path))]
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _end_after(command: Callable[[], object]) -> NoReturn:
    """Run a command and end the process like the interpreter does, but without freeing its memory.

    To free the objects of all modules takes as much processor time as the start of a host.
    """
    status = 1
    try:
        command()
        status = 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            status = ended.code or 0
        else:
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _use_once() -> None:
    """Compile patterns and schemas that each host would compile at its start."""
    for shape in importlib.import_module("wopr.security.shapes").known_shapes():
        # Some of the patterns import a large library.
        _ = shape.pattern
    definitions = importlib.import_module("wopr.host.definitions")
    checks = importlib.import_module("wopr.runs.definitions.checks")
    registry = importlib.import_module("wopr.nodes.builtin").builtin_registry()
    for definition in (definitions.hello_workflow(), *definitions.conformance_fixtures()):
        with suppress(importlib.import_module("wopr.protocol.errors").WoprError):
            checks.check_definition(definition, registry)


def main() -> None:
    """Import the program, fork on request, and run the command in each forked process."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in (*_IMPORTED, *sys.argv[2:]):
        # Without the optional packages, hosts are tested that do without them.
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    _use_once()
    # To build all commands takes a quarter of the start of a host.
    vars(typer.main)["get_command"] = cache(typer.main.get_command)
    typer.main.get_command(importlib.import_module("wopr.cli.main").app)
    gc.collect()
    gc.freeze()
    request = _fork_on_request(control)
    if request is not None:
        control.detach()
        _become(*request)
        _end_after(importlib.import_module("wopr.cli.main").main)


if __name__ == "__main__":
    main()
