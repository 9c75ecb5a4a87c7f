"""A real PostgreSQL for one session of tests, shared by all of its processes.

Run as a program it starts a server, prints where it is, and stops it and deletes its files as soon
as the process that it was started for has ended, however that ended.
"""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path

from tests.postgres.cluster import running_cluster

ROOT = Path(__file__).parents[2]
# Nothing here must outlive a crash of the machine, so the disk is not waited for.
SETTINGS = """
fsync = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
max_connections = 500
shared_buffers = 64MB
autovacuum = off
timezone = 'UTC'
"""


def shared_server(folder: Path) -> str:
    """The URL of the session's server, starting it first where no process has yet."""
    file = folder / "postgres.url"
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(_start(folder / "postgres.log"))
        return file.read_text()


def _start(log: Path) -> str:
    # With several processes, they are the children of the one whose end is the session's.
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
    # It ends by itself when this session has: nobody here waits for it.
    process.returncode = 0
    return url


def main(session: int) -> None:
    """Serve until that process has ended."""
    with running_cluster(SETTINGS) as cluster:
        print(cluster.url, flush=True)
        sys.stdout.close()
        ended = os.pidfd_open(session)
        select.select([ended], [], [])


if __name__ == "__main__":
    main(int(sys.argv[1]))
