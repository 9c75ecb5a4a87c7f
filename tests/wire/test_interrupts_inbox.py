from __future__ import annotations

import pytest

from tests.support.client import Wire
from tests.support.definitions import workflow
from tests.support.host import ACME, GLOBEX, INGEST, VIEWER, ServedHost
from tests.support.interrupts import (
    ACCEPT,
    accepted,
    external,
    gate,
    inbox,
    principal_of,
    waiting_run,
)
from tests.wire.conftest import Connect
from wopr.protocol.documents import Json, JsonObject

pytestmark = pytest.mark.both_stores

QUESTION = {"id": "q", "question": "Which colour?"}


def asks() -> JsonObject:
    return gate("ask", "core.clarificationGate", questions=[QUESTION])


def pages(wire: Wire, limit: int, **query: Json) -> list[JsonObject]:
    """Return every item, page by page."""
    found: list[JsonObject] = []
    cursor: dict[str, Json] = {}
    while True:
        page = wire.document("/v1/interrupts", params={"limit": limit} | query | cursor)
        assert len(page["items"]) <= limit
        found += page["items"]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


# Items


def test_an_item_shows_requester_question_reason_and_deadline(acme: Wire) -> None:
    run_id = waiting_run(
        acme, gate(actions=["accept", "reject", "ask"], description="Look.", timeoutMs=60_000)
    )

    [item] = inbox(acme, runId=run_id)

    assert (item["runId"], item["nodeId"], item["kind"]) == (run_id, "gate", "approval")
    assert item["interruptId"] == "int-gate:0"
    assert item["status"] == "waiting-approval"
    assert item["question"] == "Fine?"
    assert item["data"]["description"] == "Look."
    assert item["askedBy"] == {
        "nodeName": "gate",
        "workflowId": item["workflowId"],
        "startedBy": principal_of(ACME),
    }
    assert item["answers"].keys() == {"accept", "reject", "ask"}
    assert item["answerUrl"] == f"/v1/runs/{run_id}/interrupts/gate"
    assert item["expiresAt"] > item["requestedAt"]
    assert item["timeoutMs"] == 60_000
    assert 0 <= item["ageMs"] < 60_000


def test_an_unsure_agent_is_named_with_its_reason(acme: Wire) -> None:
    run_id = acme.create("conformance-agent-low-confidence")

    [item] = inbox(acme, runId=run_id)

    assert item["askedBy"]["agentId"] == "core.conformance.low-conf-decider"
    assert item["reason"] == "low-confidence"
    assert item["question"].startswith("core.conformance.low-conf-decider is 50 % confident")
    assert item["answers"].keys() == {"accept", "decision", "reject"}


def test_the_link_of_an_item_is_the_url_to_answer(acme: Wire) -> None:
    run_id = waiting_run(acme, gate("a/b?c"))
    [item] = inbox(acme, runId=run_id)

    response = acme.post(item["answerUrl"], {"resumeValue": ACCEPT})

    assert response.json()["status"] == "completed"


def test_an_item_is_listed_exactly_while_its_wait_is_pending(acme: Wire) -> None:
    run_id = waiting_run(acme, gate(), gate("second"))
    first = [item["nodeId"] for item in inbox(acme, runId=run_id)]
    accepted(acme, run_id, "gate", ACCEPT)
    second = [item["nodeId"] for item in inbox(acme, runId=run_id)]
    accepted(acme, run_id, "second", ACCEPT)

    assert (first, second, inbox(acme, runId=run_id)) == (["gate"], ["second"], [])


# The list


def test_the_newest_wait_is_first(acme: Wire) -> None:
    workflow_id = acme.register(workflow([gate()]))
    runs = [acme.create(workflow_id) for _ in range(5)]

    listed = [item["runId"] for item in inbox(acme, workflowId=workflow_id)]

    assert listed == runs[::-1]


@pytest.mark.parametrize("limit", [1, 3, 200])
def test_the_pages_contain_everything_once(acme: Wire, limit: int) -> None:
    workflow_id = acme.register(workflow([gate(), asks()], edges=[]))
    runs = [acme.create(workflow_id) for _ in range(4)]

    items = pages(acme, limit, workflowId=workflow_id)

    found = [(item["runId"], item["nodeId"]) for item in items]
    assert sorted(found) == sorted((run_id, n) for run_id in runs for n in ("gate", "ask"))
    moments = [item["requestedAt"] for item in items]
    assert moments == sorted(moments, reverse=True)


def test_a_page_continues_where_it_was_while_items_change(acme: Wire) -> None:
    workflow_id = acme.register(workflow([gate()]))
    runs = [acme.create(workflow_id) for _ in range(6)]
    query = {"workflowId": workflow_id, "limit": 2}
    first = acme.document("/v1/interrupts", params=query)
    accepted(acme, runs[4], "gate", ACCEPT)
    accepted(acme, runs[2], "gate", ACCEPT)
    acme.create(workflow_id)

    second = acme.document("/v1/interrupts", params=query | {"cursor": first["nextCursor"]})

    assert [item["runId"] for item in second["items"]] == [runs[3], runs[1]]


def test_each_filter_selects_what_it_names(acme: Wire) -> None:
    both = acme.register(workflow([gate(), asks()], edges=[]))
    other = acme.register(workflow([external()]))
    one, two = acme.create(both), acme.create(other)

    def found(**query: Json) -> set[tuple[str, str]]:
        return {(item["runId"], item["kind"]) for item in pages(acme, 200, **query)}

    assert found(workflowId=both) == {(one, "approval"), (one, "clarification")}
    assert found(workflowId=both, kind="approval") == {(one, "approval")}
    assert found(runId=two) == {(two, "external-event")}
    assert found(runId=two, kind="approval") == set()
    assert found(runId=one, workflowId=other) == set()
    assert {(one, "approval"), (two, "external-event")} <= found(kind="approval,external-event")
    assert {kind for _, kind in found(kind="clarification")} == {"clarification"}


@pytest.mark.parametrize(
    "query",
    [
        {"kind": "nonsense"},
        {"kind": "approval,"},
        {"limit": "0"},
        {"limit": "201"},
        {"limit": "many"},
        {"cursor": "nonsense"},
    ],
)
def test_an_invalid_filter_is_refused_by_name(acme: Wire, query: dict[str, str]) -> None:
    response = acme.get("/v1/interrupts", params=query)

    assert response.status_code == 400
    assert response.json()["details"]["field"] in query


# Authorization


def test_a_reader_sees_the_inbox_but_cannot_answer(acme: Wire, connect: Connect) -> None:
    run_id = waiting_run(acme, gate())

    [item] = inbox(connect(VIEWER), runId=run_id)

    assert "token" not in str(item).lower()


@pytest.mark.parametrize(("key", "status"), [(None, 401), (INGEST, 403)])
def test_without_the_scope_to_read_runs_the_inbox_is_forbidden(
    connect: Connect, key: str | None, status: int
) -> None:
    assert connect(key).get("/v1/interrupts").status_code == status


# Other tenants


def test_another_tenant_sees_no_items_and_gets_no_updates(
    acme: Wire, globex: Wire, host: ServedHost
) -> None:
    run_id = waiting_run(acme, gate())
    path, unknown = f"/v1/runs/{run_id}", "/v1/runs/no-such-run"
    body = {"resumeValue": ACCEPT}

    answers = [globex.post(f"{each}/interrupts/gate", body) for each in (path, unknown)]
    empty = [globex.post(f"{each}/interrupts/gate", {}) for each in (path, unknown)]
    listed = globex.get("/v1/interrupts", params={"runId": run_id})
    by_workflow = globex.get(
        "/v1/interrupts", params={"workflowId": acme.snapshot(run_id)["workflowId"]}
    )

    assert answers[0].status_code == 404
    assert answers[0].content == answers[1].content == empty[0].content == empty[1].content
    assert listed.json() == by_workflow.json() == {"items": []}
    assert acme.snapshot(run_id)["status"] == "waiting-approval"


def test_a_cursor_of_another_tenant_lists_one_s_own_items(acme: Wire, connect: Connect) -> None:
    workflow_id = acme.register(workflow([gate()]))
    for _ in range(2):
        acme.create(workflow_id)
    cursor = acme.document("/v1/interrupts", params={"limit": 1})["nextCursor"]

    page = connect(GLOBEX).document("/v1/interrupts", params={"cursor": cursor})

    assert not [item for item in page["items"] if item["workflowId"] == workflow_id]
