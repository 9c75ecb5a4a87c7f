"""The PostgreSQL server of the tests: it changes nothing outside its folder, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]  # the package carries no types
import pytest

from tests.support.postgres import cluster as clusters
from tests.support.postgres.cluster import Cluster, running_cluster

ROOT = Path(__file__).parents[2]
SETTINGS = "fsync = off\nshared_buffers = 1MB\nmax_connections = 10"
_SERVE = """
import sys, time
from pathlib import Path
from tests.support.postgres.cluster import running_cluster
with running_cluster(sys.argv[1], Path(sys.argv[2])) as cluster:
    print(cluster.pid, flush=True)
    time.sleep(600)
"""


def rights(folder: Path) -> list[tuple[int, int, int]]:
    found = [path.stat() for path in (folder, *folder.parents)]
    return [(each.st_mode, each.st_uid, each.st_gid) for each in found]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that all users can read, like the system's temporary folder."""
    with TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_a_server_does_not_change_the_folders_above_its_own(folder: Path) -> None:
    before = rights(folder)

    with running_cluster(SETTINGS, under=folder) as cluster:
        served = cluster.run("psql", cluster.url, "--no-psqlrc", "-Atc", "SELECT 6 * 7")

        assert rights(folder) == before
    assert served == "42\n"
    assert list(folder.iterdir()) == []


def test_a_server_ends_with_the_process_that_started_it_even_after_a_kill(
    folder: Path,
) -> None:
    command = [sys.executable, "-c", _SERVE, SETTINGS, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = psutil.Process(int(process.stdout.readline()))

        process.send_signal(signal.SIGKILL)

        assert psutil.wait_procs([server], timeout=60)[1] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has programs that its server cannot reach")
def test_programs_in_a_folder_readable_by_root_only_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, own = folder / "hidden", folder / "own"
    hidden.mkdir(mode=0o700)
    own.mkdir()
    package = clusters._installed().parent
    for place in (package, package.with_name(f"{package.name}.libs")):
        (hidden / place.name).symlink_to(place)
    installed = hidden / package.name / clusters._installed().name
    monkeypatch.setattr(clusters, "_installed", lambda: installed)

    cluster = Cluster(own, SETTINGS)

    assert cluster.binaries.is_relative_to(own)
