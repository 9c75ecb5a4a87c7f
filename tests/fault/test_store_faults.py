from __future__ import annotations

import resource
import secrets
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.fault.cluster import stream_text
from tests.support.client import Wire
from tests.support.definitions import delay, node, variable, workflow
from tests.support.eventually import eventually, eventually_async
from tests.support.forked import run
from tests.support.fragile_host import FragileHost
from tests.support.host import environment
from tests.support.in_process import NOON, TENANT, Gates, bench, gate_types, numbered
from wopr.cluster.wakeups import FAILED_DELAY_MS
from wopr.store.sqlite.migrations import MIGRATIONS

pytestmark = pytest.mark.timeout(600)

NewHost = Callable[..., FragileHost]

SMALL_BYTES = 16_384
UNDER_WAY_MS = 12_000


def fill_disk(host: FragileHost) -> None:
    """Limit the host's writes to the first few pages of any file, as on a full disk."""
    assert Path(f"{host.db}-wal").stat().st_size > SMALL_BYTES
    assert host.stderr_file.stat().st_size < SMALL_BYTES // 2
    limit(host, SMALL_BYTES)


def free_disk(host: FragileHost) -> None:
    limit(host, resource.RLIM_INFINITY)


def limit(host: FragileHost, size: int) -> None:
    _, most = resource.prlimit(host.running.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(host.running.pid, resource.RLIMIT_FSIZE, (size, most))


def readiness(host: FragileHost) -> int:
    return host.wire.get("/readyz").status_code


def refuses(response: httpx.Response) -> bool:
    """Return whether a response is the envelope of an unavailable host."""
    body = response.json()
    return bool(
        response.status_code == 503
        and body["error"] == "service_unavailable"
        and body["details"]["correlationId"]
    )


@pytest.mark.sqlite("the disk is full for the files of this host")
def test_a_full_disk_is_reported_and_nothing_is_acknowledged_until_there_is_space(
    new_host: NewHost,
) -> None:
    host = new_host()
    before = host.wire.create("conformance-noop")
    fill_disk(host)

    created = [host.wire.post("/v1/runs", {"workflowId": "conformance-noop"}) for _ in range(3)]
    keyed = [
        host.wire.post(
            "/v1/runs", {"workflowId": "conformance-noop"}, headers={"Idempotency-Key": "once"}
        )
        for _ in range(2)
    ]

    assert all(refuses(response) for response in [*created, *keyed])
    assert readiness(host) == 503
    assert host.wire.snapshot(before)["status"] == "completed"
    assert [item["runId"] for item in host.wire.document("/v1/runs")["items"]] == [before]
    free_disk(host)
    assert readiness(host) == 200
    headers = {"Idempotency-Key": "once"}
    assert host.wire.finished(host.wire.create("conformance-noop", headers=headers))


@pytest.mark.sqlite("the disk is full for the files of this host")
def test_runs_in_progress_on_a_full_disk_continue_when_there_is_space(
    new_host: NewHost,
) -> None:
    host = new_host()
    wire = host.wire
    # All of them last longer than a busy machine may delay the filling of the disk.
    talking = stream_text(host, 60, 200)
    asleep = wire.create(wire.register(workflow([delay("wait", UNDER_WAY_MS), node("after")])))
    child = wire.register(workflow([delay("sleep", UNDER_WAY_MS)]))
    call = node("call", "core.subWorkflow", config={"workflowId": child})
    parent = wire.create(wire.register(workflow([call])))
    wire.events_until(parent, "node.dispatched")
    wire.events_until(talking, "output.chunk")
    fill_disk(host)
    eventually(lambda: host.log().count("advance failed") >= 3)

    free_disk(host)

    assert [wire.finished(run)["status"] for run in (talking, asleep, parent)] == ["completed"] * 3
    chunks = [event for event in wire.log(talking) if event["type"] == "output.chunk"]
    assert [chunk["payload"]["chunk"] for chunk in chunks] == [str(number) for number in range(60)]


@pytest.mark.sqlite("the disk is full for the files of this host")
def test_commands_refused_on_a_full_disk_can_be_repeated(new_host: NewHost) -> None:
    host = new_host()
    wire = host.wire
    runs = {
        name: wire.create("conformance-cancellable", {"delayMs": UNDER_WAY_MS})
        for name in ("/cancel", ":pause")
    }
    fill_disk(host)

    refused = [wire.post(f"/v1/runs/{run_id}{name}") for name, run_id in runs.items()]
    free_disk(host)
    done = [wire.post(f"/v1/runs/{run_id}{name}") for name, run_id in runs.items()]

    assert all(refuses(response) for response in refused)
    assert [response.status_code for response in done] == [200, 202]
    assert wire.finished(runs["/cancel"])["status"] == "cancelled"
    wire.events_until(runs[":pause"], "run.paused")
    assert wire.post(f"/v1/runs/{runs[':pause']}:resume").status_code == 202
    assert wire.finished(runs[":pause"])["status"] == "completed"


def try_to_serve(data_dir: Path) -> subprocess.CompletedProcess[str]:
    """Start a host that should refuse to start, and wait for its end."""
    return run(("serve", "--port", "0"), environment(data_dir, {}))


def told(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a host prints when it does not start."""
    assert done.returncode not in (0, -signal.SIGKILL)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    return line


def test_a_file_that_is_not_a_database_is_refused_in_one_line(tmp_path: Path) -> None:
    tmp_path.joinpath("wopr.db").write_bytes(secrets.token_bytes(5000))

    assert "not a database" in told(try_to_serve(tmp_path))


@pytest.mark.sqlite("the database is a file")
def test_a_truncated_database_is_refused_in_one_line(new_host: NewHost) -> None:
    host = new_host()
    host.stop()
    cut = host.data_dir.parent / "cut"
    cut.mkdir()
    whole = host.db.read_bytes()
    cut.joinpath("wopr.db").write_bytes(whole[: len(whole) // 3])

    assert "damaged" in told(try_to_serve(cut))


@pytest.mark.sqlite("the database is a file")
def test_a_newer_schema_is_refused_in_one_line(new_host: NewHost) -> None:
    host = new_host()
    host.stop()
    later = host.data_dir.parent / "later"
    later.mkdir()
    shutil.copy(host.db, later)
    connection = sqlite3.connect(later / "wopr.db")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()

    line = told(try_to_serve(later))

    assert f"schema {len(MIGRATIONS) + 1}" in line
    assert "newer" in line


def test_a_host_key_readable_by_others_is_refused_in_one_line(tmp_path: Path) -> None:
    key = tmp_path / "host.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o644)

    assert "chmod 600" in told(try_to_serve(tmp_path))


@pytest.mark.sqlite("PostgreSQL is made to be shared")
def test_a_second_host_on_the_same_database_is_refused_in_one_line(new_host: NewHost) -> None:
    host = new_host()

    line = told(try_to_serve(host.data_dir))

    assert f"another wopr process ({host.running.pid})" in line
    assert host.wire.finished(host.wire.create("conformance-noop"))["status"] == "completed"


def test_a_killed_host_does_not_block_the_next_one(new_host: NewHost) -> None:
    host = new_host()
    host.kill()

    host.start()

    assert readiness(host) == 200


def test_keys_are_created_and_used_beside_a_serving_host(new_host: NewHost) -> None:
    host = new_host()

    key = host.command("keys", "create", "--tenant", "acme").splitlines()[0]

    with Wire(host.url, key) as wire:
        assert wire.finished(wire.create("conformance-noop"))["status"] == "completed"


@pytest.mark.anyio
async def test_an_unreadable_run_is_postponed_and_others_continue(
    tmp_path: Path, gates: Gates
) -> None:
    secret = variable("secret", sensitive=True)
    async with bench(tmp_path, *gate_types(gates), new_id=numbered()) as ours:
        workflow_id = await ours.register([delay("wait", 1)], variables=[secret])
        run_id = await ours.create(workflow_id, {"secret": "joshua"})
    tmp_path.joinpath("host.key").write_bytes(secrets.token_bytes(32))

    def others() -> Callable[[], str]:
        numbers = numbered()
        return lambda: f"other-{numbers()}"

    async with bench(tmp_path, *gate_types(gates), new_id=others()) as ours:
        other = await ours.create(await ours.register([node("quick")]))
        await ours.until(other, "completed")

        async def is_put_off() -> bool:
            return (await ours.row(run_id)).wake_at == NOON + FAILED_DELAY_MS

        await eventually_async(is_put_off)
        assert (await ours.host.store.run(TENANT, run_id)) is not None
