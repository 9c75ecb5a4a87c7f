"""The inbox: waiting nodes on its own pages and on the page of their run."""

from __future__ import annotations

import re

import pytest

from tests.console.conftest import SignedIn
from tests.console.inbox import AGENT, answered, pick, unsure
from tests.console.samples import PROBE, PROBES
from tests.support.agent_definitions import child, children, mock, scripted
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import fresh, node, variable, workflow
from tests.support.host import REVIEWER, VIEWER
from tests.support.interrupts import (
    accepted,
    external,
    gate,
    until_waiting,
    waiting_run,
)
from wopr.protocol.documents import JsonObject


def test_waits_are_listed_with_kind_and_requester_and_counted_in_the_title(
    acme: Person, wire: Wire
) -> None:
    title = fresh("title")
    run_id = waiting_run(wire, gate(title=title, timeoutMs=3_600_000))

    text = acme.get("/inbox").text

    markup = Markup(text)
    assert f"/inbox/{run_id}/gate?interruptId=int-gate%3A0" in markup.links
    assert title in markup.text
    assert [each for each in markup.all("time") if "data-until" in each]
    assert re.search(r"<title>\(\d+\) Inbox", text)
    assert markup.all("button", name="answer", value="accept")


def test_the_list_is_filtered_by_kind_workflow_and_run(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate())
    name = wire.snapshot(run_id)["workflowId"]

    for query in (f"runId={run_id}", f"workflowId={name}", f"workflowId={name}&kind=approval"):
        assert len(acme.page(f"/inbox?{query}").all("a", **{"data-open": ""})) == 1
    empty = acme.page(f"/inbox?workflowId={name}&kind=clarification")
    assert "No open items match this filter" in empty.text
    assert acme.get("/inbox?kind=nonsense").status_code == 400


def test_an_unsure_agent_is_shown_with_confidence_threshold_and_text(
    acme: Person, wire: Wire
) -> None:
    run_id = unsure(wire)

    text = acme.page(f"/inbox/{run_id}/actor").text

    assert "41 %" in text
    assert "(needs 70 %)" in text
    assert "untrusted text" in text
    assert "It may be either." in text
    assert "The agent's decision is accepted and executed." in text


def _paid_twice() -> tuple[JsonObject, JsonObject]:
    """Return two steps of a case: a note, and an agent that calls a tool, hands off and decides."""
    notes = node("notes", "core.setVariable", config={"name": "memo", "value": "paid twice"})
    agent = mock(
        "triage",
        agent=AGENT,
        mockToolCalls=[{"toolId": "shop:orders", "arguments": {}, "result": {"order": "o-17"}}],
        mockHandoff={"toAgentId": "core.conformance.refunds", "reason": "a refund is due"},
        mockDecision={"decision": {"refund": 49.75}, "confidence": 0.9},
    )
    return notes, agent


def test_a_wait_shows_the_inputs_of_its_run_and_the_preceding_steps(
    acme: Person, wire: Wire
) -> None:
    declared = [variable("complaint"), variable("memo")]
    nodes = [*_paid_twice(), gate("refund", title="Refund?"), node("after")]
    name = wire.register(scripted(nodes, variables=declared))
    run_id = wire.create(name, {"complaint": "I was charged twice"})
    until_waiting(wire, run_id)

    for path in (f"/inbox/{run_id}/refund", f"/inbox?runId={run_id}"):
        text = acme.page(path).text

        shown = [
            "I was charged twice",
            "paid twice",
            "shop:orders",
            "o-17",
            "a refund is due",
            "49.75",
        ]
        places = [text.find(each) for each in shown]
        assert -1 not in places
        assert places == sorted(places)


def test_a_wait_of_a_child_run_shows_the_inputs_of_its_parent(acme: Person, wire: Wire) -> None:
    worker = wire.register(child(gate("refund", title="Refund?")))
    call = node("ask", "core.subWorkflow", config={"workflowId": worker})
    declared = [variable("complaint"), variable("memo")]
    name = wire.register(scripted([*_paid_twice(), call], variables=declared))
    run_id = wire.create(name, {"complaint": "I was charged twice"})
    wire.events_until(run_id, "node.dispatched")
    [child_id] = children(wire.log(run_id))
    until_waiting(wire, child_id)

    page = acme.page(f"/inbox/{child_id}/refund")

    assert f"/runs/{run_id}" in page.links
    for each in ("I was charged twice", "o-17", "a refund is due"):
        assert each in page.text


def test_a_wait_shows_only_the_last_steps_of_a_long_run(acme: Person, wire: Wire) -> None:
    before = [node(f"step-{number}") for number in range(30)]
    run_id = waiting_run(wire, *before, gate(title="Fine?"))

    page = acme.page(f"/inbox/{run_id}/gate")

    assert f"/runs/{run_id}/nodes/step-29" in page.links
    assert f"/runs/{run_id}/nodes/step-5" not in page.links
    assert "18 earlier steps" in page.text


def test_a_wait_does_not_show_secrets(acme: Person, wire: Wire) -> None:
    secret = fresh("secret")
    run_id = wire.create(
        wire.register(workflow([gate()], variables=[variable("token", sensitive=True)])),
        {"token": secret},
    )
    until_waiting(wire, run_id)

    assert secret not in acme.get(f"/inbox/{run_id}/gate").text


def test_the_number_of_waits_is_available_to_scripts(acme: Person, wire: Wire) -> None:
    before = acme.get("/inbox/count").json()["waiting"]

    waiting_run(wire, gate())

    assert acme.get("/inbox/count").json()["waiting"] > before


def test_an_unchanged_list_is_not_sent_again(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate())
    path, headers = f"/inbox?runId={run_id}", {"x-part": "1"}
    first = acme.get(path, headers=headers)

    again = acme.get(path, headers=headers | {"if-none-match": "*"})

    assert first.headers["etag"]
    assert again.status_code == 304


def test_a_viewer_sees_the_wait_without_a_form(signed_in: SignedIn, wire: Wire) -> None:
    run_id = waiting_run(wire, gate())
    viewer = signed_in(VIEWER)

    for path in ("/inbox", f"/inbox/{run_id}/gate", f"/runs/{run_id}"):
        page = viewer.page(path)
        assert not page.all("button", name="answer")
        assert not page.all("input", type="checkbox", value="int-gate:0")
    assert "approvals:respond" in viewer.page(f"/inbox/{run_id}/gate").text


def test_an_external_event_cannot_be_answered_here(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, external())

    page = acme.page(f"/inbox/{run_id}/wait")

    assert "which you cannot send from this page" in page.text
    assert "order.paid" in page.text
    assert not page.all("button", name="answer")
    assert (
        answered(acme, run_id, "wait", answer="accept", interruptId="int-wait:0").status_code == 400
    )


def test_a_gate_for_other_people_is_marked(acme: Person, signed_in: SignedIn, wire: Wire) -> None:
    run_id = waiting_run(wire, gate(approverRoleRefs=["reviewer"]))

    mine = acme.page(f"/inbox/{run_id}/gate")

    assert "Your key is not among the keys that may answer this" in mine.text
    assert not mine.all("button", name="answer")
    assert signed_in(REVIEWER).page(f"/inbox/{run_id}/gate").all("button", name="answer")


# On the page of the run


def test_a_run_s_page_has_the_form_and_returns_to_itself(acme: Person, wire: Wire) -> None:
    run_id = waiting_run(wire, gate(title="Here too?"))

    page = acme.page(f"/runs/{run_id}")
    answer = answered(acme, run_id, answer="accept", next=f"/runs/{run_id}")

    assert page.all("form", action=f"/inbox/{run_id}/gate")
    assert page.all("input", name="next", value=f"/runs/{run_id}")
    assert answer.headers["location"] == f"/runs/{run_id}?done=answered"


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "\\\\evil"])
def test_an_answer_redirects_only_within_the_console(acme: Person, wire: Wire, target: str) -> None:
    run_id = waiting_run(wire, gate())

    answer = answered(acme, run_id, answer="accept", next=target)

    assert answer.headers["location"].startswith("/?done=")


# Text from others


def test_text_in_every_field_of_a_wait_is_escaped(acme: Person, wire: Wire) -> None:
    questions = [{"id": PROBE[:60], "question": PROBE, "schema": {"enum": [PROBE]}}]
    nodes = [
        gate(
            "gate", title=PROBE, description=PROBE, requiredApprovals=3, rejectionPolicy="majority"
        ),
        gate("ask", "core.clarificationGate", questions=questions),
        gate("talk", "core.conversationGate", prompt=PROBE),
        gate("pick", "core.interrupt", kind="custom", data={"customKind": PROBE, "payload": PROBE}),
    ]
    run_id = wire.create(wire.register(workflow(nodes, edges=[])))
    until_waiting(wire, run_id)
    answered(acme, run_id, answer="reject", reason=PROBE)
    answered(acme, run_id, "talk", answer="exchange", turn=PROBE)

    for node_id in ("gate", "ask", "talk", "pick"):
        answer = acme.get(f"/inbox/{run_id}/{node_id}")
        assert PROBES[0] not in answer.text
        assert PROBES[0] in Markup(answer.text).text
    again = answered(acme, run_id, "pick", answer="value", value=PROBE)
    assert again.status_code == 400
    assert PROBES[0] not in again.text


def test_text_in_the_results_of_answers_is_escaped(acme: Person, wire: Wire) -> None:
    run_id, other = waiting_run(wire, gate(title=PROBE)), waiting_run(wire, gate(title=PROBE))
    accepted(wire, run_id, "gate", {"action": "reject", "feedback": PROBE})

    late = acme.post(f"/inbox/{run_id}/gate", interruptId="int-gate:0", answer=PROBE, reason=PROBE)
    many = acme.post("/inbox/batch", answer="accept", reason=PROBE, **pick(run_id), **pick(other))

    for answer in (late, many):
        assert PROBES[0] not in answer.text
        assert PROBES[0] in Markup(answer.text).text
