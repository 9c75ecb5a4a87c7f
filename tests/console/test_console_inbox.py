from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest

from tests.console.client import Markup, Person
from tests.console.conftest import SignedIn
from tests.console.samples import PROBE, PROBES
from tests.wire.agent_definitions import DONE, mock, next_worker, scripted, supervised
from tests.wire.client import Wire
from tests.wire.definitions import fresh, node, workflow
from tests.wire.host import ACME, LIVE, OPERATOR, REVIEWER, VIEWER, ServedHost
from tests.wire.test_interrupts_governance import TYPE as GOVERNANCE_GATE
from tests.wire.waiting import (
    ACCEPT,
    external,
    gate,
    inbox,
    name_of,
    payload,
    taken,
    until_waiting,
    waiting,
)
from wopr.protocol.documents import Json, JsonObject

ACTIONS = ["accept", "reject", "refine", "edit-accept", "ask"]
AGENT = {"agentId": "core.conformance.agent", "modelClass": "reasoning"}
DECISION = {"topic": "delivery"}


def answered(person: Person, run_id: str, node_id: str = "gate", **fields: str) -> httpx.Response:
    """Send the form of a wait as its page has it."""
    path = f"/inbox/{run_id}/{node_id}"
    form = Markup(person.get(path).text)
    hidden = {e["name"]: e["value"] for e in form.all("input", type="hidden") if "name" in e}
    wanted = ("csrf", "interruptId", "next")
    return person.http.post(path, data={n: hidden[n] for n in wanted if n in hidden} | fields)


def went_on(answer: httpx.Response, done: str = "answered") -> None:
    assert answer.status_code == 303, answer.text
    assert f"done={done}" in answer.headers["location"]


def resolved(wire: Wire, run_id: str) -> Json:
    """What the log says that the answer was."""
    return payload(wire, run_id, "interrupt.resolved")["resumeValue"]


def unsure(wire: Wire) -> str:
    """A run whose agent is not sure enough."""
    doubt = mock(
        agent=AGENT,
        mockReasoning={"summary": "It may be either."},
        mockDecision={"decision": DECISION, "confidence": 0.41},
    )
    run_id = wire.create(wire.register(scripted([doubt, node("after")])))
    until_waiting(wire, run_id)
    return run_id


# What the inbox shows


def test_what_waits_is_listed_with_its_kind_its_asker_and_its_number_in_the_title(
    acme: Person, wire: Wire
) -> None:
    title = fresh("title")
    run_id = waiting(wire, gate(title=title, timeoutMs=3_600_000))

    text = acme.get("/inbox").text

    markup = Markup(text)
    assert f"/inbox/{run_id}/gate?interruptId=int-gate%3A0" in markup.links
    assert title in markup.text
    assert [each for each in markup.all("time") if "data-until" in each]
    assert re.search(r"<title>\(\d+\) Inbox", text)
    assert markup.all("button", name="answer", value="accept")


def test_the_list_is_narrowed_by_kind_workflow_and_run(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate())
    name = wire.snapshot(run_id)["workflowId"]

    for query in (f"runId={run_id}", f"workflowId={name}", f"workflowId={name}&kind=approval"):
        assert len(acme.page(f"/inbox?{query}").all("a", **{"data-open": ""})) == 1
    empty = acme.page(f"/inbox?workflowId={name}&kind=clarification")
    assert "Nothing of this kind waits" in empty.text
    assert acme.get("/inbox?kind=nonsense").status_code == 400


def test_an_unsure_agent_is_shown_with_its_confidence_its_threshold_and_its_own_words(
    acme: Person, wire: Wire
) -> None:
    run_id = unsure(wire)

    text = acme.page(f"/inbox/{run_id}/actor").text

    assert "41 %" in text
    assert "below 70 %" in text
    assert "untrusted text" in text
    assert "It may be either." in text
    assert "The agent's decision stands and is carried out." in text


def test_the_number_of_waits_is_there_for_scripts(acme: Person, wire: Wire) -> None:
    before = acme.get("/inbox/count").json()["waiting"]

    waiting(wire, gate())

    assert acme.get("/inbox/count").json()["waiting"] > before


def test_a_script_that_has_the_list_is_spared_it(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate())
    path, headers = f"/inbox?runId={run_id}", {"x-part": "1"}
    first = acme.get(path, headers=headers)

    again = acme.get(path, headers=headers | {"if-none-match": "*"})

    assert first.headers["etag"]
    assert again.status_code == 304


def test_whoever_may_only_look_sees_the_wait_and_no_way_to_answer(
    signed_in: SignedIn, wire: Wire
) -> None:
    run_id = waiting(wire, gate())
    viewer = signed_in(VIEWER)

    for path in ("/inbox", f"/inbox/{run_id}/gate", f"/runs/{run_id}"):
        page = viewer.page(path)
        assert not page.all("button", name="answer")
        assert not page.all("input", type="checkbox", value="int-gate:0")
    assert "approvals:respond" in viewer.page(f"/inbox/{run_id}/gate").text


def test_an_event_from_outside_cannot_be_answered_here(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, external())

    page = acme.page(f"/inbox/{run_id}/wait")

    assert "cannot be answered here" in page.text
    assert "order.paid" in page.text
    assert not page.all("button", name="answer")
    assert (
        answered(acme, run_id, "wait", answer="accept", interruptId="int-wait:0").status_code == 400
    )


def test_a_gate_for_others_says_so(acme: Person, signed_in: SignedIn, wire: Wire) -> None:
    run_id = waiting(wire, gate(approverRoleRefs=["reviewer"]))

    mine = acme.page(f"/inbox/{run_id}/gate")

    assert "This gate is for others" in mine.text
    assert not mine.all("button", name="answer")
    assert signed_in(REVIEWER).page(f"/inbox/{run_id}/gate").all("button", name="answer")


# Answers of every kind


@pytest.mark.parametrize(
    ("fields", "value", "status"),
    [
        ({"answer": "accept"}, {"action": "accept"}, "completed"),
        ({"answer": "accept", "reason": "ok"}, {"action": "accept", "feedback": "ok"}, "completed"),
        ({"answer": "reject", "reason": "no"}, {"action": "reject", "feedback": "no"}, "failed"),
        (
            {"answer": "edit-accept", "edited": '{"to": "Bea"}'},
            {"action": "edit-accept", "editedArtifactData": {"to": "Bea"}},
            "completed",
        ),
    ],
    ids=["accept", "accept with a reason", "reject", "edit"],
)
def test_an_approval_is_answered(
    acme: Person, wire: Wire, fields: dict[str, str], value: JsonObject, status: str
) -> None:
    letter = {"type": "expression", "expression": '{"to": "Ada"}'}
    asked = gate(actions=ACTIONS) | {"inputs": {"artifact": letter}}
    run_id = waiting(wire, asked)

    went_on(answered(acme, run_id, **fields))

    assert resolved(wire, run_id) == value
    assert wire.finished(run_id)["status"] == status


def test_an_artifact_that_is_a_text_is_edited_as_text(acme: Person, wire: Wire) -> None:
    text = {"type": "expression", "expression": '"Dear Ada"'}
    run_id = waiting(wire, gate(actions=ACTIONS) | {"inputs": {"artifact": text}})

    went_on(answered(acme, run_id, answer="edit-accept", edited="Dear Bea"))

    assert resolved(wire, run_id) == {
        "action": "edit-accept",
        "editedArtifactData": "Dear Bea",
    }


def test_work_is_sent_back_with_what_to_change(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, node("draft"), gate(actions=ACTIONS))

    refused = answered(acme, run_id, answer="refine")
    went_on(answered(acme, run_id, answer="refine", reason="shorter"))

    assert refused.status_code == 400
    assert "say what to change" in refused.text
    feedback = {"scope": "whole", "text": "shorter"}
    assert resolved(wire, run_id) == {"action": "refine", "refineFeedback": feedback}


def test_a_question_back_leaves_the_gate_open(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate(actions=ACTIONS))

    went_on(answered(acme, run_id, answer="ask", reason="Who is Ada?"), "asked")

    assert wire.snapshot(run_id)["status"] == "waiting-approval"
    assert payload(wire, run_id, "log.appended")["fields"]["question"] == "Who is Ada?"


def test_questions_are_answered_by_fields_of_their_schemas(acme: Person, wire: Wire) -> None:
    questions = [
        {"id": "colour", "question": "Which?", "schema": {"enum": ["red", "blue"]}},
        {"id": "count", "question": "How many?", "schema": {"type": "integer", "minimum": 1}},
        {"id": "sure", "question": "Sure?", "schema": {"type": "boolean"}},
        {
            "id": "tags",
            "question": "Tags?",
            "schema": {"type": "array", "items": {"type": "string"}},
        },
        {"id": "why", "question": "Why?"},
    ]
    run_id = waiting(wire, gate("ask", "core.clarificationGate", questions=questions))
    fields = {
        "answer": "answers",
        "answer.colour": '"blue"',
        "answer.count": "3",
        "answer.sure": "true",
        "answer.tags": "a\nb",
        "answer.why": "because",
    }

    went_on(answered(acme, run_id, "ask", **fields))

    said = {"colour": "blue", "count": 3, "sure": True, "tags": ["a", "b"], "why": "because"}
    assert resolved(wire, run_id) == {"answers": said}


def test_an_answer_that_does_not_fit_is_shown_again_with_what_is_wrong(
    acme: Person, wire: Wire
) -> None:
    questions = [
        {"id": "count", "question": "How many?", "schema": {"type": "integer", "minimum": 1}},
        {"id": "why", "question": "Why?"},
    ]
    run_id = waiting(wire, gate("ask", "core.clarificationGate", questions=questions))

    small = answered(acme, run_id, "ask", **{"answer": "answers", "answer.count": "0"})
    word = answered(acme, run_id, "ask", **{"answer": "answers", "answer.count": "many"})
    kept = {"answer": "answers", "answer.count": "2", "answer.why": ""}
    missing = answered(acme, run_id, "ask", **kept)

    assert [each.status_code for each in (small, word, missing)] == [400, 400, 400]
    assert "0 is less than the minimum of 1" in Markup(small.text).text
    assert "must be a whole number" in word.text
    assert Markup(missing.text).all("input", name="answer.count", value="2")
    assert "is missing: Why?" in Markup(missing.text).text
    assert wire.snapshot(run_id)["status"] == "waiting-input"


@pytest.mark.parametrize(
    ("fields", "value", "status"),
    [
        ({"answer": "accept"}, {"action": "accept"}, "completed"),
        ({"answer": "reject"}, {"action": "reject"}, "failed"),
        (
            {"answer": "decision", "edited": '{"topic": "invoice"}'},
            {"decision": {"topic": "invoice"}},
            "completed",
        ),
    ],
    ids=["ratify", "reject", "override"],
)
def test_an_unsure_decision_is_ratified_rejected_or_replaced(
    acme: Person, wire: Wire, fields: dict[str, str], value: JsonObject, status: str
) -> None:
    run_id = unsure(wire)

    went_on(answered(acme, run_id, "actor", **fields))

    assert resolved(wire, run_id) == value
    assert wire.finished(run_id)["status"] == status


def test_a_decision_that_is_no_json_is_not_taken(acme: Person, wire: Wire) -> None:
    run_id = unsure(wire)

    answer = answered(acme, run_id, "actor", answer="decision", edited="{topic")

    assert answer.status_code == 400
    assert "must be JSON" in answer.text
    assert "{topic" in answer.text
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_a_conversation_goes_on_turn_by_turn_and_is_closed(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate("talk", "core.conversationGate", prompt="What now?"))

    went_on(answered(acme, run_id, "talk", answer="exchange", turn="Look at prices."), "said")
    page = acme.page(f"/inbox/{run_id}/talk")
    went_on(answered(acme, run_id, "talk", answer="close", turn="Enough."))

    assert "What now?" in page.text
    assert "Look at prices." in page.text
    assert wire.finished(run_id)["status"] == "completed"


def test_a_governance_gate_takes_a_decision_and_a_reason(
    signed_in: SignedIn, acme: Person, wire: Wire
) -> None:
    run_id = waiting(wire, gate("gate", GOVERNANCE_GATE, requiredRole="reviewer"))
    reviewer = signed_in(REVIEWER)

    others = acme.page(f"/inbox/{run_id}/gate")
    went_on(answered(reviewer, run_id, answer="granted", reason="within limits"))

    assert "role reviewer" in others.text
    assert not others.all("button", name="answer")
    assert resolved(wire, run_id) == {"decision": "granted", "reason": "within limits"}


def test_a_wait_of_the_workflow_s_own_takes_what_its_schema_says(acme: Person, wire: Wire) -> None:
    schema = {
        "type": "object",
        "required": ["level"],
        "properties": {"level": {"enum": [1, 2]}, "note": {"type": "string"}},
    }
    asked = {"kind": "custom", "data": {"customKind": "vendor.level"}, "resumeSchema": schema}
    run_id = waiting(wire, gate("pick", "core.interrupt", **asked))

    refused = answered(acme, run_id, "pick", **{"answer": "value", "value.note": "x"})
    went_on(answered(acme, run_id, "pick", **{"answer": "value", "value.level": "2"}))

    assert refused.status_code == 400
    assert "level" in refused.text
    assert resolved(wire, run_id) == {"level": 2}


def test_a_wait_of_the_workflow_s_own_offers_yes_and_no_where_its_schema_takes_them(
    acme: Person, wire: Wire
) -> None:
    schema = {"anyOf": [{"enum": ["accept", "reject"]}, {"type": "object", "required": ["to"]}]}
    asked = {"kind": "custom", "data": {"customKind": "vendor.look"}, "resumeSchema": schema}
    run_id = waiting(wire, gate("pick", "core.interrupt", **asked))

    page = acme.page(f"/inbox/{run_id}/pick")
    went_on(answered(acme, run_id, "pick", answer="accept"))

    assert [b["value"] for b in page.all("button", name="answer")] == ["accept", "reject", "value"]
    assert resolved(wire, run_id) == "accept"


def test_an_approval_with_a_schema_of_its_own_asks_for_that_too(acme: Person, wire: Wire) -> None:
    data = {"artifactId": "a", "artifactType": "t", "title": "Fine?", "actions": ["accept"]}
    schema = {
        "type": "object",
        "required": ["action", "ticket"],
        "properties": {"action": {}, "ticket": {"type": "string", "minLength": 3}},
    }
    asked = {"kind": "approval", "data": data, "resumeSchema": schema}
    run_id = waiting(wire, gate("gate", "core.interrupt", **asked))

    refused = answered(acme, run_id, **{"answer": "accept", "extra.ticket": "x"})
    went_on(answered(acme, run_id, **{"answer": "accept", "extra.ticket": "T-17"}))

    assert refused.status_code == 400
    assert "ticket" in refused.text
    assert wire.finished(run_id)["status"] == "completed"


# Supervisors that are not sure enough, in each way that a host may ask


def doubtful(wire: Wire) -> str:
    """A run whose supervisor's first decision waits for a person."""
    decision = next_worker("conformance-noop", confidence=0.3)
    run_id = wire.create(wire.register(supervised(decision, DONE)))
    wire.events_until(run_id, "interrupt.requested")
    return run_id


def test_a_supervisor_s_decision_is_shown_with_how_sure_it_is(acme: Person, wire: Wire) -> None:
    run_id = doubtful(wire)
    [node_id] = [item["nodeId"] for item in inbox(wire, runId=run_id)]

    text = acme.page(f"/inbox/{run_id}/{node_id}").text
    went_on(answered(acme, run_id, node_id, answer="accept"))

    assert "30 %" in text
    assert "below 50 %" in text
    assert "The supervisor's decision is carried out." in text
    assert wire.finished(run_id)["status"] == "completed"


@pytest.mark.parametrize(
    ("kind", "fields", "value"),
    [
        ("x-host-wopr-second-look", {"answer": "accept"}, {"action": "accept"}),
        (
            "x-host-wopr-second-look",
            {"answer": "value", "value": '{"kind": "terminate", "reason": "goal-reached"}'},
            {"kind": "terminate", "reason": "goal-reached"},
        ),
        (
            "clarification",
            {"answer": "answers", "answer.decision": "accept"},
            {"answers": {"decision": "accept"}},
        ),
    ],
    ids=["vendor", "vendor, decided otherwise", "clarification"],
)
def test_a_host_s_own_kind_of_wait_is_answered(
    new_host: Callable[..., ServedHost],
    signed_in: SignedIn,
    kind: str,
    fields: dict[str, str],
    value: Json,
) -> None:
    host = new_host("--conformance", WOPR_CONFIDENCE_INTERRUPT_KIND=kind)
    person = signed_in(ACME, host)
    with Wire(host.url, ACME) as wire:
        run_id = doubtful(wire)
        [item] = inbox(wire, runId=run_id)

        page = person.page(f"/inbox/{run_id}/{item['nodeId']}")
        went_on(answered(person, run_id, item["nodeId"], **fields))

        assert "30%" in page.text
        assert resolved(wire, run_id) == value
        assert wire.finished(run_id)["status"] == "completed"


# Several who answer


def test_votes_are_counted_and_their_voters_named(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = waiting(wire, gate(requiredApprovals=2))

    went_on(answered(acme, run_id, answer="accept"), "voted")
    mine = acme.page(f"/inbox/{run_id}/gate")
    page = signed_in(OPERATOR).page(f"/inbox/{run_id}/gate")
    went_on(answered(signed_in(LIVE), run_id, answer="accept"))

    assert "1 of 2" in page.text
    assert name_of(ACME) in page.text
    assert "You have voted" in mine.text
    assert "You have voted" not in page.text
    assert wire.finished(run_id)["status"] == "completed"


def test_an_answer_that_lost_the_race_says_who_won_and_with_what(
    acme: Person, signed_in: SignedIn, wire: Wire
) -> None:
    run_id = waiting(wire, gate())
    slow = signed_in(REVIEWER)
    form = {"interruptId": "int-gate:0", "answer": "reject", "reason": "I have doubts"}
    went_on(answered(acme, run_id, answer="accept", reason="fine with me"))

    late = slow.post(f"/inbox/{run_id}/gate", **form)

    assert late.status_code == 409
    text = Markup(late.text).text
    assert "Your answer came too late" in text
    assert f"{name_of(ACME)} was faster and accepted" in text
    assert "fine with me" in text
    assert "I have doubts" in text


def test_an_answer_to_work_that_was_done_again_is_not_taken_for_the_new(
    acme: Person, wire: Wire
) -> None:
    run_id = waiting(wire, node("draft"), gate(actions=ACTIONS))
    taken(wire, run_id, "gate", {"action": "refine", "refineFeedback": {"scope": "whole"}})
    until_waiting(wire, run_id)

    late = acme.post(f"/inbox/{run_id}/gate", interruptId="int-gate:0", answer="accept")

    assert late.status_code == 409
    assert "sent it back" in late.text
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_a_wait_that_is_over_tells_how_it_ended(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate())
    taken(wire, run_id, "gate", ACCEPT)

    text = acme.page(f"/inbox/{run_id}/gate").text

    assert "accepted" in text
    assert "It is over" in text


def test_a_node_that_is_not_there_is_not_found(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate())

    assert acme.get(f"/inbox/{run_id}/nowhere").status_code == 404


# Many at once


def pick(run_id: str, node_id: str = "gate", interrupt: str = "int-gate:0") -> dict[str, str]:
    return {f"pick:{run_id}:{node_id}": interrupt}


def test_many_are_accepted_with_one_reason_and_each_outcome_is_told(
    acme: Person, wire: Wire
) -> None:
    plain, settled = waiting(wire, gate()), waiting(wire, gate())
    doubt, quorum = unsure(wire), waiting(wire, gate(requiredApprovals=2))
    asked = waiting(
        wire,
        gate("ask", "core.clarificationGate", questions=[{"id": "q", "question": "Which?"}]),
    )
    taken(wire, settled, "gate", {"action": "reject", "feedback": "too late for this"})
    interrupt = inbox(wire, runId=doubt)[0]["interruptId"]
    picks = pick(plain) | pick(settled) | pick(quorum) | pick(doubt, "actor", interrupt)
    picks |= pick(asked, "ask", "int-ask:0")

    answer = acme.post("/inbox/batch", answer="accept", reason="all fine", **picks)

    assert answer.status_code == 200
    text = Markup(answer.text).text
    assert "2 accepted, 3 otherwise" in text
    assert "was faster and rejected: too late for this" in text
    assert "your vote is counted" in text
    assert "needs an answer of its own" in text
    assert resolved(wire, plain) == {"action": "accept", "feedback": "all fine"}
    assert wire.finished(doubt)["status"] == "completed"
    assert wire.snapshot(asked)["status"] == "waiting-input"


def test_many_are_rejected(acme: Person, wire: Wire) -> None:
    runs = [waiting(wire, gate()) for _ in range(2)]

    acme.post("/inbox/batch", answer="reject", **pick(runs[0]), **pick(runs[1]))

    assert [wire.finished(run_id)["status"] for run_id in runs] == ["failed", "failed"]


def test_nothing_chosen_or_no_answer_is_refused(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate())

    nothing = acme.post("/inbox/batch", answer="accept")
    no_answer = acme.post("/inbox/batch", answer="maybe", **pick(run_id))

    assert (nothing.status_code, no_answer.status_code) == (400, 400)
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


def test_another_tenant_s_wait_is_not_answered_among_many(globex: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate(title="acme alone"))

    answer = globex.post("/inbox/batch", answer="accept", **pick(run_id))

    assert "acme alone" not in answer.text
    assert wire.snapshot(run_id)["status"] == "waiting-approval"


# On the run's own page


def test_a_run_s_page_has_the_form_and_comes_back_to_itself(acme: Person, wire: Wire) -> None:
    run_id = waiting(wire, gate(title="Here too?"))

    page = acme.page(f"/runs/{run_id}")
    answer = answered(acme, run_id, answer="accept", next=f"/runs/{run_id}")

    assert page.all("form", action=f"/inbox/{run_id}/gate")
    assert page.all("input", name="next", value=f"/runs/{run_id}")
    assert answer.headers["location"] == f"/runs/{run_id}?done=answered"


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "\\\\evil"])
def test_an_answer_leads_nowhere_else(acme: Person, wire: Wire, target: str) -> None:
    run_id = waiting(wire, gate())

    answer = answered(acme, run_id, answer="accept", next=target)

    assert answer.headers["location"].startswith("/?done=")


# Somebody else's words


def test_words_in_every_field_of_a_wait_stay_words(acme: Person, wire: Wire) -> None:
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


def test_a_late_answer_and_many_at_once_tell_words_as_words(acme: Person, wire: Wire) -> None:
    run_id, other = waiting(wire, gate(title=PROBE)), waiting(wire, gate(title=PROBE))
    taken(wire, run_id, "gate", {"action": "reject", "feedback": PROBE})

    late = acme.post(f"/inbox/{run_id}/gate", interruptId="int-gate:0", answer=PROBE, reason=PROBE)
    many = acme.post("/inbox/batch", answer="accept", reason=PROBE, **pick(run_id), **pick(other))

    for answer in (late, many):
        assert PROBES[0] not in answer.text
        assert PROBES[0] in Markup(answer.text).text
