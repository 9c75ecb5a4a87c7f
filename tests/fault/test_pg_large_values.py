"""Large values stored by one process, while another continues the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.cluster import cluster
from tests.support.definitions import delay
from tests.support.eventually import eventually
from tests.support.postgres.databases import Databases
from tests.wire.test_large_values import LIMIT, TEXT, passing, whole

pytestmark = pytest.mark.timeout(300)


def test_a_run_whose_values_one_process_stored_continues_at_another(
    databases: Databases, tmp_path: Path
) -> None:
    with (
        databases.lent() as url,
        cluster(url, tmp_path, apis=2, workers=0, WOPR_INLINE_VALUE_BYTES=LIMIT) as running,
    ):
        dying, heir = running.apis
        name = dying.wire.register(passing(delay("wait", 2000)))
        run_id = dying.wire.create(name, {"text": TEXT})
        eventually(lambda: "$artifact" in str(dying.wire.snapshot(run_id).get("variables")))
        assert dying.wire.snapshot(run_id)["status"] == "running"

        dying.kill()

        found = heir.wire.finished(run_id)
        assert found["status"] == "completed", found
        assert list(found["outputs"]["said"]) == ["$artifact"]
        assert whole(heir.wire, run_id, found["outputs"]) == {"said": TEXT}
        running.check()
