from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh, node, variable, workflow
from tests.support.eventually import eventually
from tests.support.feedback import CANARY, listed
from tests.support.host import ACME, REVIEWER, ServedHost
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores


def installed_agent(wire: Wire) -> str:
    agent_id = f"local.acme.{fresh('judge')}"
    manifest = {
        "agentId": agent_id,
        "persona": "Judge",
        "modelClass": "general",
        "systemPrompt": "Judge the run.",
    }
    response = wire.post("/v1/agents", manifest)
    assert response.status_code == 201, response.text
    return agent_id


def expression(text: str) -> JsonObject:
    return {"type": "expression", "expression": text}


def judging_workflow(wire: Wire, outputs: JsonObject, **fields: Json) -> str:
    """Return a workflow with these outputs, each an expression over the judged run."""
    verdict = node(
        "verdict",
        "core.end",
        outputRole="primary",
        inputs={name: expression(text) for name, text in outputs.items()},
    )
    variables = [variable("run", "object"), variable("events", "array")]
    return wire.register(workflow([verdict], variables=variables, **fields))


def order(wire: Wire, workflow_id: str, agent_id: str, **fields: Json) -> JsonObject:
    response = wire.post("/v1/judges", {"workflowId": workflow_id, "agentId": agent_id, **fields})
    assert response.status_code == 202, response.text
    judge: JsonObject = response.json()
    return judge


def settled(wire: Wire, judge: JsonObject) -> JsonObject:
    """Wait until a judge is done."""
    path = f"/v1/judges/{judge['judgeId']}"
    eventually(lambda: wire.document(path)["state"] == "done")
    return wire.document(path)


def test_a_judge_annotates_every_run_as_its_agent(acme: Wire) -> None:
    tag = fresh("tag")
    runs = [acme.run("conformance-noop", tags=[tag])["runId"] for _ in range(3)]
    agent_id = installed_agent(acme)
    workflow_id = judging_workflow(
        acme,
        {
            "rating": 'variables.run.status == "completed" ? 5 : 1',
            "note": '"events: " + string(size(variables.events))',
        },
    )

    found = settled(acme, order(acme, workflow_id, agent_id, filter={"tag": tag}))

    assert found["counts"] == {
        **{"pending": 0, "running": 0, "annotated": 3},
        **{"skipped": 0, "failed": 0},
    }
    assert {item["runId"] for item in found["items"]} == set(runs)
    for item in found["items"]:
        [stored] = listed(acme, item["runId"])
        assert stored["annotationId"] == item["annotationId"]
        assert stored["actor"] == {"principalRef": agent_id}
        assert stored["signal"] == {"kind": "rating", "rating": 5}
        assert stored["note"] == f"events: {len(acme.log(item['runId']))}"


def test_a_judging_run_is_linked_to_the_judged_one_and_marked_untrusted(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]
    agent_id = installed_agent(acme)
    workflow_id = judging_workflow(acme, {"flag": "true"})

    [item] = settled(acme, order(acme, workflow_id, agent_id, runIds=[run_id]))["items"]

    judging = acme.snapshot(item["judgeRunId"])
    assert judging["metadata"]["judgedRunId"] == run_id
    assert judging["metadata"]["contentTrust"] == "untrusted"
    assert judging["inputs"]["contentTrust"] == "untrusted"
    assert judging["inputs"]["run"]["runId"] == run_id
    assert judging["inputs"]["events"] == acme.log(run_id)


def test_inputs_can_be_mapped(acme: Wire) -> None:
    run_id = acme.run("conformance-identity", {"payload": {"text": "hello"}})["runId"]
    verdict = node(
        "verdict",
        "core.end",
        inputs={"label": {"type": "variable", "variableName": "said"}},
    )
    variables = [variable("said", required=True)]
    workflow_id = acme.register(workflow([verdict], variables=variables))

    mapping = {"said": "run.inputs.payload.text"}
    judge = order(acme, workflow_id, installed_agent(acme), runIds=[run_id], inputMapping=mapping)

    [item] = settled(acme, judge)["items"]
    assert item["state"] == "annotated"
    assert listed(acme, run_id)[0]["signal"] == {"kind": "label", "label": "hello"}
    assert acme.snapshot(item["judgeRunId"])["inputs"].keys() == {"said", "contentTrust"}


SAYINGS: list[tuple[JsonObject, str, str]] = [
    ({"flag": "false"}, "skipped", "did not flag"),
    ({"note": '"hm"'}, "failed", "must have exactly one of"),
    ({"flag": "true", "rating": "3"}, "failed", "not rating, flag"),
    ({"rating": "9"}, "failed", "not a valid signal"),
    ({"rating": '"good"'}, "failed", "not a valid signal"),
    ({"flag": '"yes"'}, "failed", "true or false"),
    ({"rating": "variables.run.nothing.here"}, "failed", "the judging run failed"),
]


@pytest.mark.parametrize(("outputs", "state", "reason"), SAYINGS, ids=str)
def test_a_missing_verdict_is_listed_with_its_reason(
    acme: Wire, outputs: JsonObject, state: str, reason: str
) -> None:
    run_id = acme.run("conformance-noop")["runId"]
    workflow_id = judging_workflow(acme, outputs)

    [item] = settled(acme, order(acme, workflow_id, installed_agent(acme), runIds=[run_id]))[
        "items"
    ]

    assert item["state"] == state
    assert reason in item["reason"]
    assert listed(acme, run_id) == []


def test_runs_that_cannot_be_judged_are_skipped_with_the_reason(acme: Wire, globex: Wire) -> None:
    waiting = acme.register(workflow([node("wait", "core.delay", config={"ms": 60_000})]))
    unfinished = acme.create(waiting)
    foreign = globex.run("conformance-noop")["runId"]
    workflow_id = judging_workflow(acme, {"flag": "true"})
    own = acme.run(workflow_id)["runId"]

    judge = order(
        acme, workflow_id, installed_agent(acme), runIds=[unfinished, foreign, "unknown", own]
    )

    found = settled(acme, judge)
    reasons = {item["runId"]: item["reason"] for item in found["items"]}
    assert found["counts"]["skipped"] == 4
    assert "has not ended" in reasons[unfinished]
    assert reasons[foreign] == reasons["unknown"] == "there is no such run"
    assert "own workflow" in reasons[own]
    assert listed(globex, foreign) == []
    acme.post(f"/v1/runs/{unfinished}/cancel")


def test_a_missing_required_input_fails_the_item(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]
    needy = acme.register(workflow([node("a")], variables=[variable("essay", required=True)]))

    [item] = settled(acme, order(acme, needy, installed_agent(acme), runIds=[run_id]))["items"]

    assert item["state"] == "failed"
    assert "inputs.essay" in item["reason"]
    assert "judgeRunId" not in item


def test_text_of_a_judge_is_redacted(acme: Wire) -> None:
    run_id = acme.run("conformance-noop")["runId"]
    # Assembled when it runs: a definition that contains it is refused.
    correction = f'"use {CANARY[:8]}" + "{CANARY[8:]}"'
    workflow_id = judging_workflow(acme, {"correction": correction})

    settled(acme, order(acme, workflow_id, installed_agent(acme), runIds=[run_id]))

    [stored] = listed(acme, run_id)
    assert stored["signal"]["correction"] == "use [REDACTED]"


def test_a_judge_continues_after_a_restart(new_host: Callable[..., ServedHost]) -> None:
    host = new_host("--conformance")
    with Wire(host.url, ACME) as wire:
        run_id = wire.run("conformance-noop")["runId"]
        agent_id = installed_agent(wire)
        slow = node("think", "core.delay", config={"ms": 1500})
        verdict = node(
            "verdict", "core.end", outputRole="primary", inputs={"flag": expression("true")}
        )
        judge = order(wire, wire.register(workflow([slow, verdict])), agent_id, runIds=[run_id])
        assert judge["state"] == "running"

    host.restart()

    with Wire(host.url, ACME) as wire:
        found = settled(wire, judge)
        assert found["counts"]["annotated"] == 1
        assert len(listed(wire, run_id)) == 1


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"agentId": "local.acme.unknown"}, 404),
        ({"workflowId": "unknown"}, 404),
        ({"runIds": []}, 400),
        ({"filter": {}}, 400),
        ({"actor": "x"}, 400),
    ],
    ids=str,
)
def test_an_invalid_judge_is_refused(acme: Wire, changes: JsonObject, status: int) -> None:
    body: JsonObject = {
        "workflowId": "conformance-noop",
        "agentId": installed_agent(acme),
        "runIds": ["x"],
    }

    assert acme.post("/v1/judges", body | changes).status_code == status


def test_a_reviewer_can_annotate_but_not_start_a_judge(acme: Wire, connect: Connect) -> None:
    body = {
        "workflowId": "conformance-noop",
        "agentId": installed_agent(acme),
        "runIds": ["x"],
    }

    response = connect(REVIEWER).post("/v1/judges", body)

    assert response.status_code == 403
    assert response.json()["details"]["scopeRequired"] == "runs:create"


def test_the_runs_of_a_judge_are_listed_in_pages(acme: Wire) -> None:
    workflow_id = judging_workflow(acme, {"flag": "true"})
    wanted = [f"unknown-{n}" for n in range(5)]
    judge = order(acme, workflow_id, installed_agent(acme), runIds=wanted)
    settled(acme, judge)
    found: list[str] = []
    query: JsonObject = {"limit": 2}

    while True:
        page = acme.document(f"/v1/judges/{judge['judgeId']}", params=query)
        found += [item["runId"] for item in page["items"]]
        if "nextCursor" not in page:
            break
        query = {"limit": 2, "cursor": page["nextCursor"]}

    assert found == wanted


def test_another_tenant_s_judges_and_agents_are_not_found(acme: Wire, globex: Wire) -> None:
    agent_id = installed_agent(acme)
    workflow_id = judging_workflow(acme, {"flag": "true"})
    judge = order(acme, workflow_id, agent_id, runIds=["x"])

    assert globex.get(f"/v1/judges/{judge['judgeId']}").status_code == 404
    body = {"workflowId": "conformance-noop", "agentId": agent_id, "runIds": ["x"]}
    assert globex.post("/v1/judges", body).status_code == 404
    body = {"workflowId": workflow_id, "agentId": installed_agent(globex), "runIds": ["x"]}
    assert globex.post("/v1/judges", body).status_code == 404
