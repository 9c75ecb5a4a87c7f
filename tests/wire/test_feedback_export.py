from __future__ import annotations

import csv
import importlib
import io
import json
from typing import Any

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.feedback import CANARY, FLAG, annotate, rating
from tests.support.host import INGEST, VIEWER
from tests.wire.conftest import Connect
from wopr.protocol.documents import JsonObject

pytestmark = pytest.mark.both_stores


def export(wire: Wire, **query: str) -> str:
    """Request an export without the recorder, which does not know its lines."""
    response = wire.http.get("/v1/export/runs", params=query)
    assert response.status_code == 200, response.text
    return response.text


def lines(wire: Wire, **query: str) -> list[JsonObject]:
    return [json.loads(line) for line in export(wire, **query).splitlines()]


def rows(wire: Wire, **query: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(export(wire, format="csv", **query))))


@pytest.fixture
def tag() -> str:
    return fresh("tag")


def test_json_lines_contain_snapshot_and_annotations_newest_first(acme: Wire, tag: str) -> None:
    runs = [acme.run("conformance-noop", tags=[tag])["runId"] for _ in range(3)]
    stored = [annotate(acme, runs[1], rating(4)), annotate(acme, runs[1], FLAG)]

    found = lines(acme, tag=tag)

    assert [line["run"]["runId"] for line in found] == runs[::-1]
    assert [line["annotations"] for line in found] == [[], stored, []]
    assert found[1]["run"] == acme.snapshot(runs[1])


def test_csv_has_one_flat_row_per_run(acme: Wire, tag: str) -> None:
    run_id = acme.run("conformance-failure", tags=[tag])["runId"]
    for signal in (rating(5), rating(2), FLAG, {"kind": "label", "label": "tone"}):
        annotate(acme, run_id, signal)

    [row] = rows(acme, tag=tag)

    assert (row["run_id"], row["workflow_id"]) == (run_id, "conformance-failure")
    assert (row["status"], row["tags"]) == ("failed", tag)
    assert row["error_code"]
    assert (row["annotations"], row["ratings"], row["mean_rating"]) == ("4", "2", "3.5")
    assert (row["flags"], row["corrections"], row["labels"]) == ("1", "0", "tone")


def test_a_cell_that_a_spreadsheet_would_execute_is_escaped(acme: Wire, tag: str) -> None:
    run_id = acme.run("conformance-noop", tags=[tag])["runId"]
    annotate(acme, run_id, {"kind": "label", "label": "=cmd()"})

    [row] = rows(acme, tag=tag)

    assert row["labels"] == "'=cmd()"


def test_the_filters_of_the_run_list_apply(acme: Wire, tag: str) -> None:
    failed = acme.run("conformance-failure", tags=[tag])["runId"]
    good = acme.run("conformance-noop", tags=[tag])["runId"]

    by_status = lines(acme, tag=tag, status="failed")
    by_workflow = lines(acme, tag=tag, workflowId="conformance-noop")

    assert [line["run"]["runId"] for line in by_status] == [failed]
    assert [line["run"]["runId"] for line in by_workflow] == [good]
    assert lines(acme, tag=tag, until="2020-01-01T00:00:00Z") == []


def test_a_live_run_is_exported_in_its_current_state(acme: Wire, tag: str) -> None:
    run_id = acme.create("conformance-approval", tags=[tag])
    acme.events_until(run_id, "node.suspended")

    [line] = lines(acme, tag=tag)
    [row] = rows(acme, tag=tag)

    assert line["run"]["status"] == row["status"] == "waiting-approval"
    assert (row["ended_at"], row["duration_ms"]) == ("", "")
    acme.post(f"/v1/runs/{run_id}/cancel")


def test_an_export_contains_redacted_text_only(acme: Wire, tag: str) -> None:
    run_id = acme.run("conformance-noop", tags=[tag])["runId"]
    annotate(acme, run_id, {"kind": "label", "label": CANARY}, note=CANARY)

    assert CANARY not in export(acme, tag=tag)
    assert CANARY not in export(acme, tag=tag, format="csv")


def test_parquet_is_exported(acme: Wire, tag: str) -> None:
    run_id = acme.run("conformance-noop", tags=[tag])["runId"]

    response = acme.http.get("/v1/export/runs", params={"format": "parquet", "tag": tag})

    assert response.headers["content-type"] == "application/vnd.apache.parquet"
    # It has no types of its own.
    parquet: Any = importlib.import_module("pyarrow.parquet")
    rows = parquet.read_table(io.BytesIO(response.content)).to_pylist()
    assert [row["run_id"] for row in rows] == [run_id]


@pytest.mark.parametrize(
    ("query", "field"),
    [({"format": "xml"}, "format"), ({"status": "odd"}, "status"), ({"since": "?"}, "since")],
)
def test_an_invalid_query_is_refused(acme: Wire, query: dict[str, str], field: str) -> None:
    response = acme.get("/v1/export/runs", params=query)

    assert response.status_code == 400
    assert response.json()["details"]["field"] == field


def test_each_tenant_exports_its_own_runs_only(acme: Wire, globex: Wire, tag: str) -> None:
    acme.run("conformance-noop", tags=[tag])
    own = globex.run("conformance-noop", tags=[tag])["runId"]

    assert [line["run"]["runId"] for line in lines(globex, tag=tag)] == [own]
    assert {line["run"]["owner"]["tenant"] for line in lines(globex)} == {"globex"}


def test_exporting_needs_the_scope_to_read(connect: Connect, anonymous: Wire, tag: str) -> None:
    assert connect(INGEST).get("/v1/export/runs").status_code == 403
    assert anonymous.get("/v1/export/runs").status_code == 401
    assert lines(connect(VIEWER), tag=tag) == []
