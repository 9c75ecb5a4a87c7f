"""A tenant that fills the disk with definitions, stored responses and annotations."""

from __future__ import annotations

from pathlib import Path

from tests.attack.attacked_host import HonestClient, attacked
from tests.support.definitions import fresh, node, workflow
from tests.support.feedback import path_of
from wopr.protocol.documents import JsonObject

QUOTA = 5_000_000
GROWTH_MIB = 200


def definition(version: int, workflow_id: str) -> JsonObject:
    value = {"type": "static", "value": "x" * 840_000}
    made = workflow([node("a", "core.identity", inputs={"value": value})])
    return {**made, "id": workflow_id, "version": str(version)}


def on_disk(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def test_definitions_answers_and_annotations_stay_within_the_quota_of_stored_bytes(
    tmp_path: Path,
) -> None:
    with attacked(tmp_path, WOPR_QUOTA_STORED_BYTES=str(QUOTA)) as host:
        with HonestClient(host) as honest, host.client() as wire:
            run_id = wire.create(wire.register(workflow([node("a")])))
            name = fresh()
            answers = [
                wire.post(
                    "/v1/workflows", definition(n, name), headers={"Idempotency-Key": f"k{n}"}
                )
                for n in range(1, 16)
            ]
            correction = {"kind": "correction", "correction": "x" * 3_600_000}
            long = wire.post(path_of(run_id), {"signal": correction})
            late = wire.post(path_of(run_id), {"signal": {"kind": "flag"}})
            honest.wait_for_round()

            assert {answer.status_code for answer in answers} == {201, 429}
            assert answers[-1].json()["error"] == "quota_exceeded"
            assert answers[-1].json()["details"]["quota"] == "storedBytes"
            assert (long.status_code, late.status_code) == (429, 429)
            assert on_disk(tmp_path) < 4 * QUOTA
            assert honest.growth_mib < GROWTH_MIB
        host.kill_and_recover()
