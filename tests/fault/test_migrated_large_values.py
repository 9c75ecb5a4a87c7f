"""`wopr migrate-store` with large values, plain and encrypted: the runs continue."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.forked import run
from tests.support.fragile_host import FragileHost
from tests.support.interrupts import answer, gate, until_waiting
from tests.support.postgres.databases import Databases
from tests.wire.test_large_values import LIMIT, TEXT, passing, whole

pytestmark = pytest.mark.timeout(300)


def wopr(*arguments: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WOPR_")} | variables
    done = run(arguments, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["clear", "encrypted"])
def test_runs_with_large_values_continue_after_their_database_was_moved(
    databases: Databases, tmp_path: Path, is_encrypted: bool
) -> None:
    keys = {"WOPR_ENCRYPTION_KEY": wopr("encryption", "new-key")} if is_encrypted else {}
    host = FragileHost(tmp_path / "host", (), {"WOPR_INLINE_VALUE_BYTES": LIMIT} | keys)
    host.start()
    ended = host.wire.run(host.wire.register(passing()), {"text": TEXT})
    waiting = host.wire.create(host.wire.register(passing(gate("gate"))), {"text": TEXT})
    until_waiting(host.wire, waiting)
    host.stop()
    assert (TEXT[:200].encode() in host.db.read_bytes()) is not is_encrypted

    with databases.new(is_empty=True) as url:
        moved = wopr("migrate-store", "--from", f"sqlite:///{host.db}", "--to", url, **keys)
        assert moved.startswith("moved ")
        host.variables["WOPR_DB"] = url
        host.start()

        again = host.wire.snapshot(ended["runId"])
        assert again["outputs"] == ended["outputs"]
        assert whole(host.wire, ended["runId"], again["outputs"]) == {"said": TEXT}
        taken = answer(host.wire, waiting, "gate", {"action": "accept", "comment": "c" * 2000})
        assert taken.status_code == 200, taken.text
        found = host.wire.finished(waiting)
        assert found["status"] == "completed", found
        assert whole(host.wire, waiting, found["outputs"]) == {"said": TEXT}
        fork = host.wire.post(f"/v1/runs/{ended['runId']}:fork", {"mode": "replay"}).json()["runId"]
        assert host.wire.finished(fork)["outputs"] == ended["outputs"]
        host.stop()
