"""A node's time limit applies when the process that started its wait dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.cluster import cluster
from tests.support.definitions import delay, node, workflow
from tests.support.eventually import eventually
from tests.support.postgres.databases import Databases

pytestmark = pytest.mark.timeout(300)

LIMIT_MS = 5000
# Longer than any test waits here.
LONG_MS = 600_000


def test_a_wait_of_a_killed_process_ends_at_another_one(
    databases: Databases, tmp_path: Path
) -> None:
    with databases.lent() as url, cluster(url, tmp_path, apis=1, workers=0) as ours:
        [first] = ours.apis
        child = first.wire.register(workflow([delay("wait", LONG_MS)]))
        config = {"workflowId": child}
        call = node("call", "core.subWorkflow", config=config, settings={"timeout": LIMIT_MS})
        run_id = first.wire.create(first.wire.register(workflow([call])))
        first.wire.events_until(run_id, "node.dispatched")
        eventually(lambda: ours.holder(run_id) is None)

        first.kill()
        ours.worker()

        # The child too: nothing else would end it.
        ours.until_over()
        assert ours.events(run_id)[-2:] == ["node.failed", "run.failed"]
        ours.check()
