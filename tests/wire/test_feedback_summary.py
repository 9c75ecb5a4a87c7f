from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh, node, workflow
from tests.support.feedback import FLAG, annotate, rating
from tests.support.host import INGEST
from tests.support.interrupts import gate
from tests.support.kahn import KahnRun, push_run
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

CORRECTION: JsonObject = {"kind": "correction", "correction": "so"}
LABEL: JsonObject = {"kind": "label", "label": "tone"}


def summary(wire: Wire, by: str = "workflow", **query: Json) -> JsonObject:
    return wire.document("/v1/feedback/summary", params={"by": by, **query})


@pytest.fixture
def judged(acme: Wire) -> str:
    """Return the id of a workflow with one run that has every kind of feedback."""
    pinned = node("draft", agent={"agentId": "core.acme.writer"})
    workflow_id = acme.register(workflow([pinned, node("send")]))
    run_id = acme.run(workflow_id)["runId"]
    for signal in (rating(5), rating(2), FLAG, LABEL, CORRECTION):
        annotate(acme, run_id, signal)
    annotate(acme, run_id, rating(1), target={"nodeId": "send"})
    annotate(acme, run_id, FLAG, target={"nodeId": "draft"})
    return workflow_id


def test_a_summary_counts_by_workflow(acme: Wire, judged: str) -> None:
    found = summary(acme, workflowId=judged)

    [group] = found["groups"]
    assert group == found["total"] | {"workflowId": judged}
    assert (group["annotations"], group["ratings"], group["labels"]) == (7, 3, 1)
    assert group["meanRating"] == pytest.approx(8 / 3, abs=1e-4)
    assert (group["runs"], group["correctedRuns"], group["flaggedRuns"]) == (1, 1, 1)
    assert (group["correctionRate"], group["flagRate"]) == (1, 1)


def test_rates_are_fractions_of_the_runs(acme: Wire) -> None:
    workflow_id = acme.register(workflow([node("a")]))
    runs = [acme.run(workflow_id)["runId"] for _ in range(4)]
    for signal in (FLAG, FLAG, CORRECTION, rating(1)):
        annotate(acme, runs[0], signal)
    annotate(acme, runs[1], FLAG)

    found = summary(acme, workflowId=workflow_id)

    [group] = found["groups"]
    assert group == found["total"] | {"workflowId": workflow_id}
    assert (group["annotations"], group["flags"], group["corrections"]) == (5, 3, 1)
    assert (group["runs"], group["flaggedRuns"], group["correctedRuns"]) == (4, 2, 1)
    assert (group["flagRate"], group["correctionRate"]) == (0.5, 0.25)
    assert (group["intervenedRuns"], group["interventionRate"]) == (1, 0.25)


def test_a_workflow_without_annotations_has_rates_of_zero(acme: Wire) -> None:
    workflow_id = acme.register(workflow([node("a")]))
    acme.run(workflow_id)

    [group] = summary(acme, workflowId=workflow_id)["groups"]

    assert (group["annotations"], group["runs"]) == (0, 1)
    assert (group["flagRate"], group["correctionRate"], group["interventionRate"]) == (0, 0, 0)
    assert "meanRating" not in group


def test_a_person_s_answer_is_an_intervention(acme: Wire) -> None:
    workflow_id = acme.register(workflow([gate("ok")]))
    answered, waiting = (acme.create(workflow_id) for _ in range(2))
    for run_id in (answered, waiting):
        acme.events_until(run_id, "interrupt.requested")
    value = {"resumeValue": {"action": "accept"}}
    assert acme.post(f"/v1/runs/{answered}/interrupts/ok", value).status_code == 200
    acme.finished(answered)

    [group] = summary(acme, workflowId=workflow_id)["groups"]

    assert (group["runs"], group["intervenedRuns"], group["interventionRate"]) == (2, 1, 0.5)
    assert group["correctedRuns"] == 0
    acme.post(f"/v1/runs/{waiting}/cancel")


def test_rates_of_an_agent_are_fractions_of_its_runs(acme: Wire) -> None:
    agent_id = f"core.acme.{fresh('writer')}"
    pinned = node("draft", agent={"agentId": agent_id})
    workflow_id = acme.register(workflow([pinned]))
    runs = [acme.run(workflow_id)["runId"] for _ in range(4)]
    annotate(acme, runs[0], CORRECTION)
    annotate(acme, runs[0], CORRECTION)
    annotate(acme, runs[1], FLAG, target={"nodeId": "draft"})

    [group] = summary(acme, "agent", workflowId=workflow_id)["groups"]
    narrowed = summary(acme, "workflow", agentId=agent_id)

    assert group["agentId"] == agent_id
    assert (group["runs"], group["correctionRate"], group["flagRate"]) == (4, 0.25, 0.25)
    assert group["interventionRate"] == 0.25
    assert narrowed["total"]["runs"] == 4
    assert [g["workflowId"] for g in narrowed["groups"]] == [workflow_id]


def test_an_agent_named_in_events_took_part(acme: Wire) -> None:
    run_id = acme.run("conformance-agent-reasoning")["runId"]
    named = {
        e["payload"]["agentId"] for e in acme.log(run_id) if e["type"].startswith("agent.reasoned")
    }

    groups = summary(acme, "agent", workflowId="conformance-agent-reasoning")["groups"]

    assert named <= {g["agentId"] for g in groups if g["runs"]}


def test_runs_are_counted_by_their_creation_time(acme: Wire, judged: str) -> None:
    past = {"since": "2020-01-01T00:00:00Z", "until": "2020-02-01T00:00:00Z"}

    assert summary(acme, workflowId=judged)["total"]["runs"] == 1
    assert summary(acme, workflowId=judged, **past)["total"]["runs"] == 0
    by_time = summary(acme, "time", workflowId=judged)["groups"]
    assert sum(g["runs"] for g in by_time) == 1


def test_a_summary_by_node_or_signal_counts_no_runs(acme: Wire, judged: str) -> None:
    for by in ("node", "signal"):
        found = summary(acme, by, workflowId=judged)
        assert found["total"]["runs"] == 1
        assert not any("runs" in g or "flagRate" in g for g in found["groups"])


def test_checks_of_observed_runs_are_not_counted(acme: Wire) -> None:
    before = summary(acme, workflowId="kahn.observed")["total"]
    story = KahnRun()
    failed = story.check(agent_id=None, result="fail")
    push_run(acme, story.start(), failed, story.end())

    after = summary(acme, workflowId="kahn.observed")["total"]

    assert after["runs"] == before["runs"] + 1
    assert {**after, "runs": 0, "flagRate": 0, "correctionRate": 0, "interventionRate": 0} == {
        **before,
        "runs": 0,
        "flagRate": 0,
        "correctionRate": 0,
        "interventionRate": 0,
    }


def test_a_summary_counts_by_node(acme: Wire, judged: str) -> None:
    groups = summary(acme, "node", workflowId=judged)["groups"]

    assert {g.get("nodeId"): g["annotations"] for g in groups} == {None: 5, "send": 1, "draft": 1}
    assert groups[0]["annotations"] == 5


def test_a_signal_without_an_agent_counts_for_the_agent_of_the_run(acme: Wire, judged: str) -> None:
    groups = summary(acme, "agent", workflowId=judged)["groups"]

    assert {g.get("agentId"): g["annotations"] for g in groups} == {"core.acme.writer": 7}
    assert summary(acme, agentId="core.acme.nobody")["total"]["annotations"] == 0


def test_an_event_counts_for_the_agent_that_it_names(acme: Wire) -> None:
    run_id = acme.run("conformance-agent-reasoning")["runId"]
    event = next(e for e in acme.log(run_id) if e["type"] == "agent.reasoned")
    named = event["payload"]["agentId"]

    annotate(acme, run_id, FLAG, target={"eventId": event["eventId"]})

    groups = summary(acme, "agent", workflowId="conformance-agent-reasoning")["groups"]
    assert [g["agentId"] for g in groups if g["annotations"]] == [named]


def test_a_summary_counts_by_signal(acme: Wire, judged: str) -> None:
    groups = summary(acme, "signal", workflowId=judged)["groups"]

    assert [(g["signal"], g["annotations"]) for g in groups] == [
        ("rating", 3),
        ("correction", 1),
        ("label", 1),
        ("flag", 2),
    ]
    assert "meanRating" not in groups[3]


def test_a_summary_counts_by_time(acme: Wire, judged: str) -> None:
    by_day = summary(acme, "time", workflowId=judged)["groups"]
    since = by_day[0]["since"]
    by_hour = summary(acme, "time", workflowId=judged, since=since)["groups"]

    assert sum(g["annotations"] for g in by_day) == sum(g["annotations"] for g in by_hour) == 7
    assert by_hour[-1]["since"] >= since
    assert "workflowId" not in by_day[0]


def test_a_window_excludes_other_annotations(acme: Wire, judged: str) -> None:
    past = {"since": "2020-01-01T00:00:00Z", "until": "2020-02-01T10:30:00Z"}

    found = summary(acme, workflowId=judged, **past)

    assert found["groups"] == []
    assert found["total"]["annotations"] == 0
    assert found["until"] == "2020-02-01T11:00:00.000Z"


def test_each_tenant_counts_its_own_runs_only(acme: Wire, globex: Wire, judged: str) -> None:
    for by in ("workflow", "agent", "node", "signal", "time"):
        total = summary(globex, by, workflowId=judged)["total"]
        assert (total["annotations"], total["runs"]) == (0, 0)


def test_no_text_of_an_annotation_is_in_a_summary(acme: Wire) -> None:
    secret = fresh("word")
    run_id = acme.run("conformance-noop")["runId"]
    annotate(acme, run_id, {"kind": "label", "label": secret}, note=secret)

    for by in ("workflow", "agent", "node", "signal", "time"):
        assert secret not in str(summary(acme, by))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"by": "mood"}, "by"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2030-01-01T00:00:00Z", "until": "2029-01-01T00:00:00Z"}, "since"),
    ],
)
def test_an_invalid_query_is_refused(acme: Wire, query: dict[str, str], field: str) -> None:
    response = acme.get("/v1/feedback/summary", params=query)

    assert response.status_code == 400
    assert response.json()["details"]["field"] == field


def test_a_summary_needs_the_scope_to_read(connect: Connect) -> None:
    assert connect(INGEST).get("/v1/feedback/summary").status_code == 403
