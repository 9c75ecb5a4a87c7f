"""A disk that is really full: a small file system of the test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.fault.cluster import Cluster, cluster, stream_text
from tests.support.eventually import eventually
from tests.support.host import ACME
from tests.support.postgres.cluster import running_cluster
from tests.support.postgres.server import SETTINGS

pytestmark = pytest.mark.timeout(300)

MEGABYTES = 48
BLOCK = bytes(4096)


class Disk:
    """A file system in memory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Fill the disk."""
        with self._ballast.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(BLOCK)
                except OSError:
                    return

    def clear(self) -> None:
        """Free the space."""
        self._ballast.unlink()


@contextmanager
def small_disk(place: Path, like: Path) -> Iterator[Disk]:
    """Mount a small file system owned by the owner of another folder."""
    if os.geteuid() != 0 and os.environ.get("CI") != "true":
        pytest.skip("only root can mount a small disk")
    place.mkdir()
    size = f"size={MEGABYTES}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)], check=True)
    try:
        data = place / "data"
        data.mkdir()
        os.chown(data, like.stat().st_uid, like.stat().st_gid)
        yield Disk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def disk_and_processes(tmp_path: Path) -> Iterator[tuple[Disk, Cluster]]:
    """Run processes whose database has its tables on a separate disk."""
    with (
        running_cluster(SETTINGS) as server,
        small_disk(server.folder / "small", like=server.folder) as disk,
    ):
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"CREATE TABLESPACE small LOCATION '{disk.place / 'data'}'".encode())
            admin.execute("CREATE DATABASE wopr TABLESPACE small")
        url = server.url.replace("/postgres?", "/wopr?")
        with cluster(url, tmp_path) as ours:
            yield disk, ours


def create(http: httpx.Client, created: list[str]) -> int:
    response = http.post("/v1/runs", json={"workflowId": "conformance-noop"})
    if response.status_code == 201:
        created.append(response.json()["runId"])
    else:
        assert response.json()["message"].endswith("the database's disk is full"), response.text
    return response.status_code


def test_a_full_disk_is_refused_cleanly_and_writes_work_again_with_free_space(
    disk_and_processes: tuple[Disk, Cluster],
) -> None:
    disk, ours = disk_and_processes
    headers = {"Authorization": f"Bearer {ACME}"}
    running = stream_text(ours.apis[0], 40, 300)
    ours.holder_of(running)
    created: list[str] = []

    with httpx.Client(
        base_url=ours.apis[1].url, headers=headers, timeout=60, trust_env=False
    ) as http:
        assert http.get("/readyz").status_code == 200
        disk.fill()
        # Half-empty pages in the files accept a few more.
        eventually(lambda: create(http, created) == 503)
        # It is reported for a few seconds after a write without space.
        eventually(lambda: create(http, []) == 503 and http.get("/readyz").status_code == 503)
        before = ours.one("SELECT count(*) FROM runs")
        assert {create(http, []) for _ in range(10)} == {503}
        assert ours.one("SELECT count(*) FROM runs") == before
        disk.clear()
        eventually(lambda: http.get("/readyz").status_code == 200)
        assert create(http, created) == 201

    ours.until_over()
    assert ours.status(running) == "completed"
    assert ours.chunks(running) == [str(n) for n in range(40)]
    assert {ours.status(run_id) for run_id in created} == {"completed"}
    ours.check()
