"""The console in a real browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

from tests.console.inbox import AGENT
from tests.console.samples import TenantData
from tests.support.agent_definitions import mock, scripted
from tests.support.browser import Open, press, sign_in
from tests.support.client import Wire
from tests.support.definitions import delay, fresh, node, workflow
from tests.support.host import ServedHost
from tests.support.kahn import ASKS, KahnRun, push

pytestmark = pytest.mark.sqlite("what a browser makes of a page does not depend on the store")
FINE = {"title": "Fine?"}


def test_a_person_signs_in_starts_a_run_watches_it_and_signs_out(open_page: Open) -> None:
    page = sign_in(open_page("/workflows"))
    page.get_by_role("link", name="hello", exact=True).click()
    expect(page.locator(".graph .box")).to_have_count(7)
    press(page, "s")
    dialog = page.locator("dialog")
    expect(dialog.get_by_label("name")).to_have_value("world")
    dialog.get_by_label("name").fill("Ada")
    dialog.get_by_role("button", name="Start").click()

    status = page.locator(".run h1 .status")
    expect(page.locator("[data-live-state]")).to_have_text(re.compile("live|ended"))
    expect(status).to_have_text("completed")
    expect(page.locator("#e17 .type")).to_have_text("run.completed")
    expect(page.locator("#values")).to_contain_text("Hello, Ada!")
    expect(page.locator("[data-live-state]")).to_have_text("ended")

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.goto("/runs")
    expect(page.get_by_label("API key")).to_be_visible()


def test_the_page_of_a_waiting_run_updates_without_a_reload(open_page: Open, wire: Wire) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "Fine?"})
    run_id = wire.create(wire.register(workflow([gate, node("after")])))
    wire.events_until(run_id, "interrupt.requested")
    page = sign_in(open_page(f"/runs/{run_id}"))
    expect(page.locator(".waits")).to_contain_text("Fine?")
    expect(page.locator("[data-live-state]")).to_have_text("live")

    wire.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": {"action": "accept"}})

    expect(page.locator(".run h1 .status")).to_have_text("completed")
    expect(page.locator(".waits")).to_have_count(0)
    expect(page.locator("li.event")).to_have_count(len(wire.log(run_id)))


def test_the_sections_bar_updates_the_event_count_and_the_agents(
    open_page: Open, wire: Wire
) -> None:
    gate = node("gate", "core.approvalGate", config={"title": "Fine?"})
    actor = mock(agent=AGENT, mockDecision={"decision": {"a": 1}, "confidence": 0.9})
    run_id = wire.create(wire.register(scripted([gate, actor])))
    wire.events_until(run_id, "interrupt.requested")
    page = sign_in(open_page(f"/runs/{run_id}"))
    bar = page.locator(".sections")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    expect(bar.get_by_role("link", name="Agents")).to_have_count(0)

    wire.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": {"action": "accept"}})
    wire.finished(run_id)

    expect(bar.get_by_role("link", name="Events")).to_have_text(f"Events {len(wire.log(run_id))}")
    expect(bar.get_by_role("link", name="Agents")).to_be_visible()
    expect(page.locator("#agent-steps .agent-step.decided")).to_be_visible()


def test_the_content_of_a_page_survives_its_first_live_update(open_page: Open, wire: Wire) -> None:
    actor = mock(
        agent=AGENT,
        mockToolCalls=[{"toolId": "shop:orders", "arguments": {}, "result": {}}],
        mockDecision={"decision": {"a": 1}, "confidence": 0.9},
    )
    gate = node("gate", "core.approvalGate", config={"title": "Fine?"})
    run_id = wire.create(wire.register(scripted([actor, gate, node("after")])))
    wire.events_until(run_id, "interrupt.requested")
    page = sign_in(open_page(f"/runs/{run_id}"))
    expect(page.locator("[data-live-state]")).to_have_text("live")
    note = {"signal": {"kind": "flag"}, "target": {"nodeId": "actor"}}

    wire.post(f"/v1/runs/{run_id}/annotations", note)

    expect(page.locator(".waterfall .lane").nth(1)).to_contain_text("✎ 1")
    names = page.locator(".waterfall .lane-name a")
    expect(names).to_have_text(["actor", "gate", "after"])
    names.last.scroll_into_view_if_needed()
    expect(page.locator(".waterfall .lane rect.waiting")).to_be_visible()
    expect(page.locator(".graph .box")).to_have_count(3)
    expect(page.locator("#agent-steps .agent-step")).to_have_count(2)


def test_the_page_of_a_live_run_has_no_animation(open_page: Open, wire: Wire) -> None:
    run_id = wire.create(wire.register(workflow([delay("wait", 600_000)])))
    page = sign_in(open_page(f"/runs/{run_id}"))
    expect(page.locator("[data-live-state]")).to_have_text("live")
    expect(page.locator(".run h1 .status.active")).to_have_text("running")

    assert page.evaluate("document.getAnimations({ subtree: true }).length") == 0


def test_a_page_follows_its_run_only_while_it_is_visible(open_page: Open, wire: Wire) -> None:
    run_id = wire.create(wire.register(workflow([node("gate", "core.approvalGate", config=FINE)])))
    wire.events_until(run_id, "interrupt.requested")
    hidden = sign_in(open_page(f"/runs/{run_id}"))
    seen = hidden.context.new_page()
    seen.goto(f"/runs/{run_id}")
    for page in (hidden, seen):
        expect(page.locator("[data-live-state]")).to_have_text("live")

    _make(hidden, "hidden")
    wire.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": {"action": "accept"}})
    expect(seen.locator(".run h1 .status")).to_have_text("completed")

    expect(hidden.locator(".run h1 .status")).to_have_text("waiting for approval")
    _make(hidden, "visible")
    expect(hidden.locator(".run h1 .status")).to_have_text("completed")
    expect(hidden.locator("[data-live-state]")).to_have_text("ended")


def _make(page: Page, state: str) -> None:
    """Set the visibility that the scripts of a page see."""
    page.evaluate(
        """(state) => {
          Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


def test_skipped_rows_are_on_the_previous_page(open_page: Open, wire: Wire) -> None:
    nodes = [node("gate", "core.approvalGate", config=FINE)]
    nodes += [node(f"step-{number}") for number in range(300)]
    run_id = wire.create(wire.register(workflow(nodes)))
    wire.events_until(run_id, "interrupt.requested")
    page = sign_in(open_page(f"/runs/{run_id}"))
    expect(page.locator("[data-live-state]")).to_have_text("live")
    earlier = page.get_by_role("link", name="Earlier")
    expect(earlier).to_have_count(0)

    wire.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": {"action": "accept"}})
    expect(page.locator("[data-live-state]")).to_have_text("ended")
    last = len(wire.log(run_id)) - 1
    expect(page.locator(f"#e{last}")).to_have_count(1)
    first = int(str(page.locator("li.event").first.get_attribute("id"))[1:])
    earlier.click()

    expect(page.locator(f"#e{first - 1}")).to_have_count(1)
    expect(page.locator("li.event")).to_have_count(250)


def test_new_rows_are_marked_for_a_moment(open_page: Open, wire: Wire) -> None:
    run_id = wire.create(wire.register(workflow([node("gate", "core.approvalGate", config=FINE)])))
    wire.events_until(run_id, "interrupt.requested")
    page = sign_in(open_page(f"/runs/{run_id}"))
    expect(page.locator("[data-live-state]")).to_have_text("live")
    page.evaluate(
        """() => {
          window.marked = new Set();
          new MutationObserver((changes) => {
            for (const row of document.querySelectorAll("li.is-new")) window.marked.add(row.id);
          }).observe(document.querySelector("ol[data-tail]"), { childList: true });
        }"""
    )
    before = len(wire.log(run_id))

    wire.post(f"/v1/runs/{run_id}/interrupts/gate", {"resumeValue": {"action": "accept"}})

    expect(page.locator("[data-live-state]")).to_have_text("ended")
    expect(page.locator("li.is-new")).to_have_count(0)
    new = [f"e{number}" for number in range(before, len(wire.log(run_id)))]
    assert page.evaluate("[...window.marked]") == new


# A stream that the test controls.
_FED_STREAM = """
window.EventSource = class extends EventTarget {
  constructor() { super(); window.fed = this; }
  close() {}
};
"""


def test_updates_that_arrive_together_are_drawn_together(open_page: Open, wire: Wire) -> None:
    run_id = wire.create(wire.register(workflow([delay("wait", 600_000), node("after")])))
    page = sign_in(open_page("/runs"))
    page.add_init_script(_FED_STREAM)
    page.goto(f"/runs/{run_id}")
    page.wait_for_function("window.fed")

    drawn = page.evaluate(
        """async (run) => {
          let drawn = 0;
          document.addEventListener("run:update", () => drawn++);
          const send = (kind, data) =>
            window.fed.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(data) }));
          const lane = (n) => `<div data-item="${run}:after">drawing ${n}</div>`;
          for (let n = 0; n < 20; n++) {
            send("parts", { values: `<p>drawing ${n}</p>` });
            send("items", { timeline: { html: n < 19 ? { [`${run}:after`]: lane(n) } : {} } });
            send("rows", { [`e${50 + n}`]: `<li id="e${50 + n}" class="event"></li>` });
          }
          await new Promise((done) => setTimeout(done, 100));
          return drawn;
        }""",
        run_id,
    )

    assert drawn == 1
    expect(page.locator("[data-live=values]")).to_have_text("drawing 19")
    expect(page.locator(f"[data-item='{run_id}:after']")).to_have_text("drawing 18")
    expect(page.locator("li.event[id^=e5], li.event[id^=e6]")).to_have_count(20)


def test_an_event_is_rated_in_a_dialog_and_the_stars_appear_beside_it(
    open_page: Open, wire: Wire
) -> None:
    run_id = wire.run("hello", {"name": "Ada"})["runId"]
    page = sign_in(open_page(f"/runs/{run_id}"))

    page.locator("#e6 a").click()
    expect(page.locator("dialog")).to_contain_text("Event 6 node.completed")
    press(page, "4")

    expect(page).to_have_url(re.compile(f"/runs/{run_id}\\?done=annotated#e6$"))
    expect(page.locator("#e6")).to_contain_text("★★★★")
    [stored] = wire.document(f"/v1/runs/{run_id}/annotations")["annotations"]
    assert stored["signal"] == {"kind": "rating", "rating": 4}


def test_another_person_s_note_appears_on_the_page_of_a_live_run(
    open_page: Open, wire: Wire
) -> None:
    run_id = wire.create(wire.register(workflow([delay("wait", 600_000)])))
    page = sign_in(open_page(f"/runs/{run_id}"))
    expect(page.locator("[data-live-state]")).to_have_text("live")
    event = wire.log(run_id)[1]["eventId"]

    wire.post(
        f"/v1/runs/{run_id}/annotations",
        {"signal": {"kind": "label", "label": "odd"}, "target": {"eventId": event}},
    )

    expect(page.locator("#feedback")).to_contain_text("odd")
    expect(page.locator("#e1")).to_contain_text("label")
    wire.post(f"/v1/runs/{run_id}/cancel")
    expect(page.locator(".run h1 .status")).to_have_text("cancelled")


def test_a_run_is_forked_from_an_event_after_a_preview(open_page: Open, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Ada"})["runId"]
    page = sign_in(open_page(f"/runs/{run_id}"))

    page.locator("#e9 a").click()
    page.get_by_role("link", name="Fork from here").click()
    dialog = page.locator("dialog")
    expect(dialog.locator(".preview")).to_contain_text("breathe")
    expect(dialog.locator(".part-title")).to_have_text("Fork from event 9")
    dialog.get_by_label("From event").fill("4")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator(".part-title")).to_have_text("Fork from event 4")
    dialog.get_by_role("button", name="Fork").click()

    expect(page.get_by_text("This is the fork.")).to_be_visible()
    expect(page.locator(".run h1 .status")).to_have_text("completed")
    expect(page.get_by_text("Forked from")).to_be_visible()
    assert run_id not in page.url


def test_every_action_works_with_the_keyboard(open_page: Open, wire: Wire) -> None:
    tag = fresh("tag")
    runs = [wire.run("conformance-noop", tags=[tag])["runId"] for _ in range(3)]
    page = sign_in(open_page("/settings"))
    # Even if a busy machine presses them slowly, the two keys belong together.
    page.clock.set_fixed_time(datetime.now(UTC))

    press(page, "g", "r")
    expect(page).to_have_url(re.compile("/runs$"))
    press(page, "/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.type(tag)
    press(page, "Enter")
    expect(page.locator("tbody tr")).to_have_count(3)
    press(page, "j", "j", "k")
    press(page, "Enter")

    expect(page).to_have_url(re.compile(f"/runs/{runs[2]}$"))
    press(page, "?")
    expect(page.locator("dialog")).to_contain_text("down and up in a list")
    press(page, "Escape")
    expect(page.locator("dialog")).not_to_be_visible()


def test_the_list_shows_new_runs_without_a_reload(open_page: Open, wire: Wire) -> None:
    tag = fresh("tag")
    wire.run("conformance-noop", tags=[tag])
    page = sign_in(open_page(f"/runs?tag={tag}"))
    expect(page.locator("tbody tr")).to_have_count(1)

    wire.run("conformance-noop", tags=[tag])

    expect(page.locator("tbody tr")).to_have_count(2)


def test_a_person_loads_the_demo_reads_the_fleet_and_removes_the_demo(
    open_page: Open, host: ServedHost
) -> None:
    # A tenant without data, whatever tests ran before.
    key = host.command("keys", "create", "--tenant", fresh("new"), "--role", "admin").strip()
    page = sign_in(open_page("/fleet"), key)

    page.get_by_role("button", name="Load the demo fleet").click()
    expect(page.get_by_text("The demo is loaded")).to_be_visible()
    first = page.locator(".fleet-agents tbody tr").first
    expect(first).to_contain_text("coder")
    expect(first).to_contain_text("regressed")
    expect(first.get_by_role("img", name=re.compile("runs: .* converged"))).to_be_visible()
    press(page, "a")
    expect(page).to_have_url(re.compile("window=all"))
    press(page, "j")
    press(page, "Enter")
    expect(page.locator("h1")).to_contain_text("coder")
    expect(page.locator(".trend.plot a")).not_to_have_count(0)
    page.locator(".agent-runs .id").first.click()
    expect(page.locator(".steps li").last).to_contain_text("ended partial")
    press(page, "o")
    expect(page.locator(".run h1")).to_contain_text("observed")
    expect(page.get_by_role("link", name="Fork")).to_have_count(0)

    page.goto("/fleet/audits")
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_role("link", name="Remove the demo").click()
    page.get_by_role("button", name="Remove the demo").click()
    expect(page.get_by_text("The demo is removed.")).to_be_visible()
    expect(page.get_by_text("No agents yet")).to_be_visible()


def test_the_fleet_updates_without_a_reload_and_open_parts_stay_open(
    open_page: Open, wire: Wire
) -> None:
    story = KahnRun(fresh("agent"))
    first = [story.start(), story.check(evidence={"seen": 1})]
    push(wire, *first)
    page = sign_in(open_page(f"/fleet/runs/{story.run_id}"))
    page.locator("#l1 summary").click()
    expect(page.locator("#l1 pre")).to_be_visible()
    page.locator(".glossary summary").click()
    expect(page.locator(".glossary dl")).to_be_visible()

    push(wire, *first, story.move(0, *ASKS, reason="which one?"))

    expect(page.locator("#l2")).to_contain_text("which one?")
    expect(page.locator(".run-agents")).to_contain_text("answered in the other system")
    expect(page.locator("#l1 pre")).to_be_visible()
    expect(page.locator(".glossary dl")).to_be_visible()


def test_a_term_of_the_fleet_is_explained_on_focus_and_on_a_tap(
    open_page: Open, wire: Wire
) -> None:
    story = KahnRun(fresh("agent"))
    push(wire, story.start())
    page = sign_in(open_page(f"/fleet/runs/{story.run_id}"))
    term = page.locator("th .term", has_text="Score")
    explanation = "element => getComputedStyle(element, '::after').content"

    hidden = term.evaluate(explanation)
    term.focus()
    on_focus = term.evaluate(explanation)
    press(page, "Escape")
    after_escape = term.evaluate(explanation)
    term.click()
    push(wire, story.start(), story.move(0, *ASKS, reason="which one?"))
    expect(page.locator("#l1")).to_contain_text("which one?")

    assert (hidden, after_escape) == ("none", "none")
    assert "1 means that the goal is fully reached" in on_focus
    # A list that was updated keeps the explanation.
    assert term.evaluate(explanation) == on_focus


def test_the_fleet_can_be_read_without_scripts(open_page: Open, acme_data: TenantData) -> None:
    page = sign_in(open_page("/fleet", no=True))

    page.get_by_role("link", name="24h").click()
    page.get_by_role("link", name=acme_data.story.agent_id, exact=True).click()
    page.get_by_role("link", name=acme_data.story.run_id).first.click()
    expect(page.locator(".steps li")).to_have_count(6)
    page.get_by_role("link", name="Open the run").click()
    expect(page.locator(".run h1")).to_contain_text("observed")


def test_everything_can_be_read_and_done_without_scripts(open_page: Open, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Ada"})["runId"]
    page = sign_in(open_page(f"/runs/{run_id}", no=True))

    expect(page.locator(".run h1 .status")).to_have_text("completed")
    expect(page.locator("li.event")).to_have_count(18)
    expect(page.locator(".waterfall .lane")).to_have_count(8)
    expect(page.locator(".graph .box")).to_have_count(7)
    page.locator("#e6 a").click()
    expect(page.locator("h1")).to_have_text("Event 6 node.completed")
    page.get_by_role("button", name="5").click()
    expect(page.locator("#e6")).to_contain_text("★★★★★")
    page.get_by_role("link", name="Fork", exact=True).click()
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_text("Forked from")).to_be_visible()


def test_the_colours_follow_the_chosen_theme(open_page: Open) -> None:
    page = sign_in(open_page("/settings"))
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")

    page.get_by_role("button", name="dark", exact=True).click()
    expect(page.locator("html[data-theme=dark]")).to_have_count(1)

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_two_runs_of_the_list_are_chosen_and_compared_by_keys(open_page: Open, wire: Wire) -> None:
    tag = fresh("tag")
    for name in ("Ada", "Grace"):
        wire.run("hello", {"name": name}, tags=[tag])
    page = sign_in(open_page(f"/runs?tag={tag}"))
    expect(page.get_by_role("button", name="Compare the two")).not_to_be_visible()

    press(page, *"jxjxd")

    expect(page.get_by_role("heading", name="Compare two runs")).to_be_visible()
    expect(page.locator(".divergence")).to_contain_text("inputs.name")
    expect(page.locator(".divergence mark")).to_have_text(["Ada", "Grace"])
    expect(page.locator("tr.is-first td").first).to_have_text("A greeting for you")
    page.locator(".divergence").get_by_role("link", name="B event 0").click()
    expect(page.locator("dialog")).to_contain_text("Grace")


def test_a_selection_survives_the_refresh_of_the_list(open_page: Open, wire: Wire) -> None:
    tag = fresh("tag")
    wire.run("conformance-noop", tags=[tag])
    page = sign_in(open_page(f"/runs?tag={tag}"))
    page.locator("tbody input").check()

    wire.run("conformance-noop", tags=[tag])

    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody input").last).to_be_checked()
    expect(page.locator("tbody input").first).not_to_be_checked()


def test_a_run_is_compared_with_its_fork_from_its_own_page(open_page: Open, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Ada"})["runId"]
    fork = wire.post(f"/v1/runs/{run_id}:fork", {"mode": "replay", "fromSeq": 0}).json()["runId"]
    wire.events_until(fork, "run.completed")
    page = sign_in(open_page(f"/runs/{run_id}"))

    press(page, "d")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("Forks of this run")
    dialog.get_by_title(fork).first.click()

    expect(page.locator(".same")).to_contain_text("both logs have the same events")
