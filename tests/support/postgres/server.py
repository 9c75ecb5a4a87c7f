"""A real PostgreSQL for one test session, shared by all of its processes.

Run as a program it starts a server, prints its address, and stops it and deletes its files as soon
as the process that it was started for has ended in any way.
"""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path

from tests.support.postgres.cluster import running_cluster

ROOT = Path(__file__).parents[3]
# Nothing here must survive a crash of the machine, so there is no wait for the disk.
SETTINGS = """
fsync = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
max_connections = 500
shared_buffers = 64MB
autovacuum = off
jit = off
timezone = 'UTC'
"""


def shared_server(folder: Path) -> str:
    """Return the URL of the session's server; the first process starts it."""
    file = folder / "postgres.url"
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(_start(folder / "postgres.log"))
        return file.read_text()


def _start(log: Path) -> str:
    # With several processes, their common parent determines the end of the session.
    session = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(session)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as stdout:
        url = stdout.readline().strip()
    if not url:
        process.wait()
        raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}")
    # It ends by itself after this session; no process waits for it.
    process.returncode = 0
    return url


def main(session: int) -> None:
    """Serve until the given process has ended."""
    with running_cluster(SETTINGS) as cluster:
        print(cluster.url, flush=True)
        sys.stdout.close()
        ended = os.pidfd_open(session)
        select.select([ended], [], [])


if __name__ == "__main__":
    main(int(sys.argv[1]))
