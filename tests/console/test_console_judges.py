from __future__ import annotations

import msgspec
import pytest

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import node, variable, workflow
from tests.support.eventually import eventually
from tests.support.feedback import annotate, finished_run, rating
from wopr.console.reviews.page import rating_chart
from wopr.protocol.documents import Json, JsonObject
from wopr.protocol.resources.reviews import FeedbackGroup, FeedbackSummary

# Summary


def test_rates_are_shown_by_workflow_and_by_agent(acme: Person, wire: Wire) -> None:
    name = wire.register(workflow([node("only")]))
    run_id = str(wire.run(name)["runId"])
    for _ in range(3):
        wire.run(name)
    annotate(wire, run_id, rating(4))
    annotate(wire, run_id, {"kind": "flag"})
    annotate(wire, run_id, {"kind": "correction", "correction": "x"})
    annotate(wire, run_id, rating(2))

    page = acme.page(f"/reviews?window=7d&workflowId={name}")

    assert f"/reviews?window=7d&workflowId={name}#summary" in page.links
    assert "3.00 of 5" in page.text
    # Corrected, flagged and intervened: in the numbers and in the row of the workflow.
    assert page.text.count("25 %") == 6
    assert f"/runs?feedback=flagged&workflowId={name}" in page.links
    assert len(page.all("circle")) == 1


@pytest.mark.parametrize("window", ["1d", "7d", "30d", "90d"])
def test_each_window_is_drawn(acme: Person, wire: Wire, window: str) -> None:
    annotate(wire, finished_run(wire), rating(5))

    page = acme.page(f"/reviews?window={window}")

    assert page.all("circle")
    assert page.all("a", **{"aria-current": "true"})


def test_an_invalid_window_is_refused(acme: Person) -> None:
    assert acme.get("/reviews?window=1y").status_code == 400


def test_a_tenant_without_feedback_sees_how_to_add_some(globex: Person) -> None:
    text = globex.page("/reviews?window=1d&workflowId=nothing-here").text

    assert "No feedback in this window" in text


def _group(**fields: Json) -> FeedbackGroup:
    counts = {"annotations": 1, "ratings": 1, "corrections": 0, "labels": 0, "flags": 0}
    rates = {"correctionRate": 0.0, "flagRate": 0.0}
    return msgspec.convert(counts | rates | fields, FeedbackGroup)


def _summary(*groups: FeedbackGroup) -> FeedbackSummary:
    return FeedbackSummary(
        by="time",
        since="2026-11-01T00:00:00.000Z",
        until="2026-11-11T00:00:00.000Z",
        total=_group(),
        groups=list(groups),
    )


def test_a_chart_has_five_stars_at_the_top_and_scales_bars_by_count() -> None:
    first = _group(since="2026-11-01T00:00:00.000Z", meanRating=5.0, annotations=2)
    last = _group(since="2026-11-10T00:00:00.000Z", meanRating=1.0, annotations=8)

    chart = rating_chart(_summary(first, last))

    assert [column.dot_y for column in chart.columns] == [chart.stars[4].at, chart.stars[0].at]
    assert chart.columns[1].bar_height == 4 * chart.columns[0].bar_height
    assert [round(column.x) for column in chart.columns] == [5, 95]
    assert len(chart.lines) == 1
    assert chart.times[0].label == "11-01"


def test_a_period_without_ratings_has_a_bar_and_no_dot() -> None:
    only = _group(since="2026-11-02T00:00:00.000Z", flags=1, ratings=0)

    chart = rating_chart(_summary(only))

    assert chart.columns[0].dot_y is None
    assert chart.columns[0].bar_height > 0
    assert chart.lines == []


def test_a_chart_without_data_is_empty() -> None:
    assert rating_chart(_summary()).columns == []


# Judges


def _judge(wire: Wire, runs: list[str], agent_id: str) -> str:
    verdict: JsonObject = {
        "rating": {"type": "expression", "expression": "3"},
        "note": {"type": "expression", "expression": '"judged so"'},
    }
    end = node("verdict", "core.end", inputs=verdict, outputRole="primary")
    name = wire.register(workflow([end], variables=[variable("run", "object")]))
    order = {"workflowId": name, "agentId": agent_id, "runIds": runs}
    judge = str(wire.post("/v1/judges", order).json()["judgeId"])
    eventually(lambda: wire.document(f"/v1/judges/{judge}")["state"] == "done")
    return judge


def test_a_judge_s_verdicts_are_listed_with_their_runs_and_the_reasons_for_missing_ones(
    acme: Person, wire: Wire
) -> None:
    judged, missing = finished_run(wire), "01a1df0e-24c6-76d7-9fac-000a17b787b3"
    agent_id = "core.openwop.agent-examples.structured-fixture"

    judge = _judge(wire, [judged, missing], agent_id)
    page = acme.page(f"/reviews/judges/{judge}")

    assert "judged so" in page.text
    assert "there is no such run" in page.text
    assert f"/runs/{judged}#feedback" in page.links
    [started] = [link for link in page.links if link.startswith("/runs/") and judged not in link][
        :1
    ]
    assert f"/reviews/judges/{judge}" in acme.page(started).links
    assert acme.get(f"/reviews/judges?id={judge}").headers["location"] == f"/reviews/judges/{judge}"


def test_a_missing_judge_is_not_found(acme: Person) -> None:
    assert acme.get("/reviews/judges?id=nobody").status_code == 404
    assert acme.get("/reviews/judges").status_code == 400
