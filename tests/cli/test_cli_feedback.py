from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr

ANNOTATION = {
    "annotationId": "ann-1",
    "target": {"runId": "r1"},
    "signal": {"kind": "rating", "rating": 5},
    "actor": {"principalRef": "key-1"},
    "createdAt": "2026-01-02T03:04:05.000Z",
    "note": "good",
}
GROUP = {
    **{"annotations": 4, "ratings": 2, "corrections": 1, "labels": 0, "flags": 1},
    **{"runs": 8, "correctedRuns": 1, "flaggedRuns": 2, "intervenedRuns": 4, "meanRating": 3.5},
    **{"correctionRate": 0.125, "flagRate": 0.25, "interventionRate": 0.5},
}
SUMMARY = {
    "by": "workflow",
    "since": "2026-01-01T00:00:00.000Z",
    "until": "2026-01-02T00:00:00.000Z",
    "total": GROUP,
    "groups": [{**GROUP, "workflowId": "hello"}],
}
POST = "POST /v1/runs/r1/annotations"


@pytest.mark.parametrize(
    ("options", "signal"),
    [
        (["--rating", "5"], {"kind": "rating", "rating": 5}),
        (["--label", "tone"], {"kind": "label", "label": "tone"}),
        (["--correction", ""], {"kind": "correction", "correction": ""}),
        (["--flag"], {"kind": "flag"}),
    ],
    ids=str,
)
def test_each_kind_of_signal_can_be_given(
    host: FakeHost, wopr: Wopr, options: list[str], signal: dict[str, object]
) -> None:
    host.answer(POST, ANNOTATION, 201)

    result = wopr("feedback", "add", "r1", *options)

    assert result.exit_code == 0
    assert host.bodies == [{"signal": signal, "target": {}}]
    assert result.stdout == "annotation ann-1: rating 5 of the run\n"


def test_an_event_a_node_and_a_note_are_sent_with_it(host: FakeHost, wopr: Wopr) -> None:
    target = {"runId": "r1", "eventId": "e1", "nodeId": "draft"}
    host.answer(POST, {**ANNOTATION, "target": target}, 201)

    result = wopr(
        *("feedback", "add", "r1", "--flag", "--event", "e1", "--node", "draft"),
        *("--note", "look"),
    )

    assert host.bodies[0]["target"] == {"eventId": "e1", "nodeId": "draft"}
    assert host.bodies[0]["note"] == "look"
    assert "of node draft event e1" in result.stdout


@pytest.mark.parametrize(
    "options", [[], ["--flag", "--rating", "3"], ["--rating", "6"], ["--rating", "x"]], ids=str
)
def test_no_signal_or_several_signals_are_wrong_usage(
    host: FakeHost, wopr: Wopr, options: list[str]
) -> None:
    result = wopr("feedback", "add", "r1", *options)

    assert result.exit_code == 2
    assert host.requests == []


def test_annotations_are_listed_without_control_characters(host: FakeHost, wopr: Wopr) -> None:
    odd = {**ANNOTATION, "note": "bad\x1b[31m", "signal": {"kind": "flag"}}
    host.answer("GET /v1/runs/r1/annotations", {"annotations": [ANNOTATION, odd]})

    heading, first, second = wopr("feedback", "list", "r1").stdout.splitlines()

    assert heading.split() == ["CREATED", "BY", "SIGNAL", "OF", "NOTE"]
    assert first.split() == [
        *("2026-01-02T03:04:05.000Z", "key-1", "rating", "5", "the", "run", "good"),
    ]
    assert second.endswith("bad[31m")
    as_json = json.loads(wopr("feedback", "list", "r1", "--json").stdout)
    assert as_json == {"annotations": [ANNOTATION, odd]}


def test_a_summary_is_a_table_with_its_window(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/feedback/summary", SUMMARY)

    result = wopr("feedback", "summary", "--by", "workflow", "--since", "7d", "--agent", "a.b.c")

    heading, row, total = result.stdout.splitlines()
    assert heading.startswith("WORKFLOW")
    assert row.split() == "hello 8 4 3.50 0 1 (12%) 2 (25%) 4 (50%)".split()
    assert total.split()[0] == "total"
    assert "from 2026-01-01T00:00:00.000Z to" in result.stderr
    query = host.requests[0].query_params
    assert (query["by"], query["agentId"]) == ("workflow", "a.b.c")
    assert query["since"].endswith("Z")


@pytest.mark.parametrize(
    ("by", "group", "name"),
    [
        ("agent", {"agentId": "a.b.c"}, "a.b.c"),
        ("agent", {}, "no agent"),
        ("node", {"workflowId": "hello", "nodeId": "draft"}, "hello draft"),
        ("signal", {"signal": "flag"}, "flag"),
        ("time", {"since": "2026-01-01T00:00:00.000Z"}, "2026-01-01T00:00:00.000Z"),
    ],
)
def test_a_summary_names_its_groups(
    host: FakeHost, wopr: Wopr, by: str, group: dict[str, str], name: str
) -> None:
    host.answer("GET /v1/feedback/summary", {**SUMMARY, "by": by, "groups": [{**GROUP, **group}]})

    result = wopr("feedback", "summary", "--by", by)

    assert result.stdout.splitlines()[1].startswith(name)


def test_feedback_that_is_switched_off_is_reported(host: FakeHost, wopr: Wopr) -> None:
    host.refuse(POST, 501, "capability_not_provided", "feedback is switched off")

    result = wopr("feedback", "add", "r1", "--flag")

    assert result.exit_code == 6
    assert "switched off" in result.stderr


def test_an_export_writes_a_complete_file_or_none(
    host: FakeHost, wopr: Wopr, tmp_path: Path
) -> None:
    host.answer("GET /v1/export/runs", b'{"run":{}}\n' * 1000)
    out = tmp_path / "runs.jsonl"

    result = wopr("export", "--out", str(out), "--status", "failed", "--tag", "t")

    assert result.exit_code == 0
    assert out.read_bytes() == b'{"run":{}}\n' * 1000
    assert dict(host.requests[0].query_params) == {
        "format": "jsonl",
        "status": "failed",
        "tag": "t",
    }
    assert list(tmp_path.iterdir()) == [out]


def test_an_export_goes_to_standard_output_when_no_file_is_named(
    host: FakeHost, wopr: Wopr
) -> None:
    host.answer("GET /v1/export/runs", b"run_id\nr1\n")

    assert wopr("export", "--format", "csv").stdout == "run_id\nr1\n"


def test_a_refused_export_does_not_change_the_old_file(
    host: FakeHost, wopr: Wopr, tmp_path: Path
) -> None:
    host.refuse("GET /v1/export/runs", 501, "capability_not_provided", "Parquet needs pyarrow")
    out = tmp_path / "runs.parquet"
    out.write_text("old")

    result = wopr("export", "--format", "parquet", "--out", str(out))

    assert result.exit_code == 6
    assert "pyarrow" in result.stderr
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_an_interrupted_export_is_a_failure(host: FakeHost, wopr: Wopr, tmp_path: Path) -> None:
    host.streams["GET /v1/export/runs"] = [["half a line", host.CUT]]
    out = tmp_path / "runs.jsonl"

    result = wopr("export", "--out", str(out))

    assert result.exit_code == 6
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_path_is_reported(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/export/runs", b"")

    result = wopr("export", "--out", "no/such/folder/runs.jsonl")

    assert result.exit_code == 2
    assert "cannot write" in result.stderr
