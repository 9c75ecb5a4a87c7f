"""The inbox and the reviews in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.console.inbox import ACTIONS, DECISION, unsure
from tests.support.browser import Open, press, sign_in
from tests.support.client import Wire
from tests.support.definitions import fresh, node, workflow
from tests.support.eventually import eventually
from tests.support.feedback import finished_run, listed, rating
from tests.support.host import REVIEWER
from tests.support.interrupts import (
    accepted,
    gate,
    payload,
    principal_of,
    until_waiting,
    waiting_run,
)

pytestmark = pytest.mark.sqlite("what a browser makes of a page does not depend on the store")


# Short messages are recorded here, because a busy machine may look later.
KEEP_TOASTS = """() => {
  window.toasts = [];
  const kept = (changes) => changes.flatMap((change) => [...change.addedNodes])
    .filter((added) => added.classList?.contains("toast"))
    .forEach((toast) => window.toasts.push(toast.textContent));
  new MutationObserver(kept).observe(document.body, { childList: true, subtree: true });
}"""


def waits(wire: Wire, count: int) -> tuple[str, list[str]]:
    """Start runs of one workflow that wait for an approval, newest last."""
    name = wire.register(workflow([gate(title=f"Fine, {fresh()}?"), node("after")]))
    runs = [wire.create(name) for _ in range(count)]
    for run_id in runs:
        until_waiting(wire, run_id)
    return name, runs


def test_an_approval_is_accepted_by_keyboard_with_the_whole_form_visible(
    open_page: Open, wire: Wire
) -> None:
    name, runs = waits(wire, 2)
    page = sign_in(open_page(f"/inbox?workflowId={name}"))
    expect(page.locator("[data-pane] .question")).to_contain_text("Fine, ")
    expect(page.locator("[data-pane] .wait")).to_contain_text("The run continues.")

    press(page, "j")
    expect(page.locator(f'[data-pane] [data-wait*="{runs[0]}"]')).to_be_visible()
    press(page, "a")
    expect(page.get_by_role("button", name="Accept a")).to_be_focused()
    assert wire.snapshot(runs[0])["status"] == "waiting-approval"
    press(page, "a")

    expect(page.get_by_text("Your answer is recorded.")).to_be_visible()
    assert wire.finished(runs[0])["status"] == "completed"
    assert wire.snapshot(runs[1])["status"] == "waiting-approval"


# The position of each action of the form and of its explanation.
ACTION_BOXES = """() => [...document.querySelectorAll(".answer > .choices > li")].map((line) => {
  const [button, effect] = [...line.children].map((each) => each.getBoundingClientRect());
  return { top: button.top, buttonRight: button.right, width: effect.width, right: effect.right };
})"""


@pytest.mark.parametrize("width", [390, 1280])
def test_each_action_of_a_form_has_its_own_line_beside_a_readable_effect(
    open_page: Open, wire: Wire, width: int
) -> None:
    run_id = waiting_run(wire, gate(title="Fine?", actions=ACTIONS))
    page = sign_in(open_page("/settings"))
    page.set_viewport_size({"width": width, "height": 800})

    page.goto(f"/inbox/{run_id}/gate")
    boxes = page.evaluate(ACTION_BOXES)

    assert len(boxes) == 4
    tops = [box["top"] for box in boxes]
    assert tops == sorted(set(tops))
    assert min(box["width"] for box in boxes) > 60
    assert max(box["right"] for box in boxes) <= width
    assert max(box["buttonRight"] for box in boxes) <= width


def test_an_unsure_decision_is_replaced_by_keyboard(open_page: Open, wire: Wire) -> None:
    run_id = unsure(wire)
    page = sign_in(open_page(f"/inbox?runId={run_id}"))
    pane = page.locator("[data-pane]")
    expect(pane.locator(".why")).to_contain_text("41 %")

    press(page, "e")
    expect(pane.get_by_label("Your version, as JSON")).to_be_focused()
    pane.get_by_label("Your version, as JSON").fill('{"topic": "invoice"}')
    pane.get_by_role("button", name="Use this decision").click()

    expect(page.get_by_text("Your answer is recorded.")).to_be_visible()
    value = payload(wire, run_id, "interrupt.resolved")["resumeValue"]
    assert value == {"decision": {"topic": "invoice"}}
    assert value["decision"] != DECISION


def test_several_waits_are_selected_and_accepted_with_one_reason(
    open_page: Open, wire: Wire
) -> None:
    name, runs = waits(wire, 3)
    page = sign_in(open_page(f"/inbox?workflowId={name}"))
    expect(page.locator("[data-batch]")).to_contain_text("None selected")

    press(page, "x", "j", "x")
    expect(page.locator("[data-batch]")).to_contain_text("2 selected")
    page.get_by_label("Reason for all answers").fill("all checked")
    page.locator("[data-batch]").get_by_role("button", name="Accept").click()

    expect(page.get_by_role("heading", name="Results of 2 answers")).to_be_visible()
    expect(page.locator(".outcomes .status.good")).to_have_text(["accepted", "accepted"])
    assert wire.finished(runs[2])["status"] == "completed"
    assert wire.finished(runs[1])["status"] == "completed"
    assert wire.snapshot(runs[0])["status"] == "waiting-approval"


def test_a_selection_stays_while_new_waits_appear(open_page: Open, wire: Wire) -> None:
    name, _ = waits(wire, 1)
    page = sign_in(open_page(f"/inbox?workflowId={name}"))
    page.locator("tbody input").check()
    count = page.locator(".bar .count")
    before = int(count.inner_text())

    wire.create(name)

    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody input").last).to_be_checked()
    expect(page.locator("tbody input").first).not_to_be_checked()
    expect(count).not_to_have_text(str(before))
    expect(page).to_have_title(re.compile(r"^\(\d+\) Inbox"))


def test_a_wait_answered_by_another_person_says_so_and_keeps_the_typed_text(
    open_page: Open, wire: Wire
) -> None:
    name, [run_id] = waits(wire, 1)
    page = sign_in(open_page(f"/inbox?workflowId={name}"))
    pane = page.locator("[data-pane]")
    pane.locator("textarea").first.fill("I have doubts")

    with Wire(str(wire.http.base_url), REVIEWER) as other:
        accepted(other, run_id, "gate", {"action": "accept", "feedback": "fine with me"})

    expect(pane.locator(".is-closed")).to_contain_text("accepted")
    expect(pane.locator(".is-closed")).to_contain_text("fine with me")
    expect(pane.locator(".is-closed")).to_contain_text(principal_of(REVIEWER))
    expect(pane.locator("textarea").first).to_have_value("I have doubts")
    expect(pane.get_by_role("button", name="Reject r")).to_be_disabled()


@pytest.mark.parametrize("path", ["/runs/{run_id}", "/inbox/{run_id}/gate"])
def test_the_form_of_an_ended_run_cannot_be_sent(open_page: Open, wire: Wire, path: str) -> None:
    run_id = waiting_run(wire, gate(title="Fine?"))
    written, idle = (sign_in(open_page(path.format(run_id=run_id))) for _ in range(2))
    written.locator(".answer textarea").first.fill("half a thought")

    wire.post(f"/v1/runs/{run_id}/cancel")

    expect(written.locator(".is-closed")).to_be_visible()
    expect(written.locator("button[name=answer]:enabled")).to_have_count(0)
    expect(written.locator(".answer textarea").first).to_have_value("half a thought")
    expect(idle.locator(".is-closed")).to_be_visible()
    expect(idle.locator("button[name=answer]")).to_have_count(0)


def test_a_run_is_answered_on_its_own_page_and_a_new_wait_gets_its_form(
    open_page: Open, wire: Wire
) -> None:
    run_id = waiting_run(wire, gate("one", title="First?"), gate("two", title="Second?"))
    page = sign_in(open_page(f"/runs/{run_id}"))
    answers = page.locator("#answers")
    expect(answers.locator(".question")).to_have_text("First?")
    expect(page.locator("[data-live-state]")).to_have_text("live")

    accepted(wire, run_id, "one", {"action": "accept"})
    expect(answers.locator(".is-closed")).to_contain_text("accepted")
    second = answers.locator(".wait", has_text="Second?")
    expect(second).to_be_visible()
    second.get_by_role("button", name="Accept").click()

    expect(page).to_have_url(re.compile(f"/runs/{run_id}\\?done=answered$"))
    expect(page.locator(".run h1 .status")).to_have_text("completed")


def test_text_typed_on_a_run_s_page_survives_live_updates(open_page: Open, wire: Wire) -> None:
    run_id = waiting_run(wire, gate(title="Fine?"))
    page = sign_in(open_page(f"/runs/{run_id}"))
    page.locator("#answers textarea").first.fill("half a thought")
    took = page.locator("#head dd.num").first
    before = took.inner_text()

    expect(took).not_to_have_text(before)

    expect(page.locator("#answers textarea").first).to_have_value("half a thought")


def test_a_queue_item_is_reviewed_by_keyboard(open_page: Open, wire: Wire) -> None:
    runs = [finished_run(wire) for _ in range(2)]
    rubric = [{"kind": "rating", "question": "Good?"}, {"kind": "flag", "required": False}]
    body = {"name": fresh("queue"), "rubric": rubric, "runIds": runs}
    queue = wire.post("/v1/queues", body).json()["queueId"]
    page = sign_in(open_page(f"/reviews/queues/{queue}"))
    expect(page.locator(".numbers")).to_contain_text("0 of 2")

    press(page, "n")
    expect(page.locator(".lock")).to_contain_text("Locked for you")
    press(page, *"4fdd")
    expect(page).to_have_url(re.compile(f"/items/{runs[1]}"))
    press(page, "2")
    page.get_by_role("button", name="Submit and stop").click()

    expect(page.get_by_text("Your review is stored.")).to_be_visible()
    expect(page.locator(".numbers")).to_contain_text("2 of 2")
    assert [each["signal"] for each in listed(wire, runs[0])] == [rating(4), {"kind": "flag"}]
    assert [each["signal"] for each in listed(wire, runs[1])] == [rating(2)]


def test_a_run_of_the_list_is_rated_with_two_keystrokes(open_page: Open, wire: Wire) -> None:
    tag = fresh("tag")
    run_id = str(wire.run("conformance-noop", tags=[tag])["runId"])
    page = sign_in(open_page(f"/runs?tag={tag}"))

    page.evaluate(KEEP_TOASTS)
    press(page, "j", "4")
    eventually(lambda: page.evaluate("window.toasts") == ["★★★★ stored"])
    press(page, "f")
    expect(page.locator("tbody .mark.note").first).to_contain_text("★ 4.0 ⚑ 2")

    assert [each["signal"] for each in listed(wire, run_id)] == [rating(4), {"kind": "flag"}]


def test_an_event_is_rated_with_two_keystrokes_and_corrected_with_a_third(
    open_page: Open, wire: Wire
) -> None:
    run_id = finished_run(wire)
    page = sign_in(open_page(f"/runs/{run_id}"))

    press(page, "j", "5")
    expect(page.locator("#e0 .mark.note")).to_have_text("★★★★★")
    press(page, "c")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("On event 0")
    dialog.get_by_label("Text").fill("better so")
    dialog.get_by_role("button", name="Correct").click()

    expect(page.locator("#feedback")).to_contain_text("better so")
    event = wire.log(run_id)[0]["eventId"]
    assert {each["target"]["eventId"] for each in listed(wire, run_id)} == {event}


def test_waits_are_answered_and_queues_reviewed_without_scripts(
    open_page: Open, wire: Wire
) -> None:
    name, runs = waits(wire, 2)
    body = {"name": fresh("queue"), "rubric": [{"kind": "rating"}], "runIds": [runs[0]]}
    queue = wire.post("/v1/queues", body).json()["queueId"]
    page = sign_in(open_page(f"/inbox?workflowId={name}", no=True))

    page.locator("tbody a").last.click()
    expect(page.locator(".crumbs")).to_contain_text("Inbox")
    page.get_by_role("button", name="Accept").click()
    expect(page.get_by_text("Your answer is recorded.")).to_be_visible()
    page.goto(f"/inbox?workflowId={name}")
    page.locator("tbody input").check()
    page.locator("[data-batch]").get_by_role("button", name="Reject").click()
    expect(page.locator(".outcomes .status")).to_have_text("rejected")
    page.goto(f"/reviews/queues/{queue}")
    page.get_by_role("button", name="Review the next run").click()
    page.get_by_text("3★").click()
    page.get_by_role("button", name="Submit and continue").click()
    expect(page.get_by_text("This queue has no more runs for you.")).to_be_visible()
    page.goto("/reviews")

    expect(page.locator(".chart svg").last).to_be_visible()
    assert [wire.finished(run_id)["status"] for run_id in runs] == ["completed", "failed"]
