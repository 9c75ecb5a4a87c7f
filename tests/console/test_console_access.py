"""Accessibility of every page: keyboard, light and dark, narrow screens, and untrusted text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import (  # type: ignore[import-untyped]  # no types in it
    Axe,
)
from playwright.sync_api import Browser, Page, expect

from tests.console.samples import LEADS_ON, NO_MARKUP, SAMPLES, SHOWN, Sample, TenantData
from tests.support.browser import DEADLINE_MS, sign_in
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import node, workflow
from tests.support.host import ACME, ServedHost
from tests.support.interrupts import accepted, gate, waiting_run

pytestmark = pytest.mark.sqlite("what a browser makes of a page does not depend on the store")

SERIOUS = ("serious", "critical")
# Rules that no page may break, at any impact.
ALWAYS = ("link-in-text-block", "empty-table-header")
WIDE, NARROW = 1280, 390
HEIGHT = 800
# Console pages that also open in a dialog.
PARTS = [s for s in SHOWN if s.page.name not in ("signIn", "signOut")]

each_scheme = pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])


def by_name(sample: Sample) -> str:
    return sample.page.name


@pytest.fixture(scope="module")
def window(browser: Browser, host: ServedHost) -> Iterator[Page]:
    """Return a signed-in window that all tests share."""
    context = browser.new_context(base_url=host.url, reduced_motion="reduce")
    context.set_default_timeout(DEADLINE_MS)
    page = context.new_page()
    page.goto("/settings")
    yield sign_in(page)
    context.close()


@pytest.fixture
def page(window: Page) -> Page:
    """Return the shared window: wide, light, and with the page of the last test."""
    window.set_viewport_size({"width": WIDE, "height": HEIGHT})
    set_scheme(window, is_dark=False)
    return window


@pytest.fixture(scope="module", params=SHOWN, ids=by_name)
def _opened(request: pytest.FixtureRequest, window: Page, acme_data: TenantData) -> str:
    sample: Sample = request.param
    window.goto(sample.probed(acme_data.probes))
    return window.url


@pytest.fixture
def opened(_opened: str, page: Page) -> Page:
    """Return each page with probes in it. It is loaded once for all tests that take it."""
    return_to(page, _opened)
    return page


def return_to(page: Page, url: str) -> None:
    """Load a page again if a test in between has left it."""
    if page.url != url:
        page.goto(url)


def set_scheme(page: Page, *, is_dark: bool) -> None:
    page.emulate_media(color_scheme="dark" if is_dark else "light", reduced_motion="reduce")


def faults(page: Page) -> list[str]:
    """Return the findings of an accessibility check, by rule and first faulty element."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {each['nodes'][0]['target']} of {len(each['nodes'])}"
        for each in found
        if each["impact"] in SERIOUS or each["id"] in ALWAYS
    ]


@each_scheme
def test_the_accessibility_check_finds_nothing_serious(opened: Page, is_dark: bool) -> None:
    set_scheme(opened, is_dark=is_dark)

    assert faults(opened) == []


def test_every_focused_element_is_visibly_focused(opened: Page) -> None:
    # From here on the browser assumes a keyboard user.
    opened.keyboard.press("Tab")

    unseen = opened.evaluate(UNSEEN)

    assert unseen == []


# The elements that look the same with and without focus.
UNSEEN = """() => {
  const look = (element) => [element, ...element.querySelectorAll("rect")].map((part) => {
    const style = getComputedStyle(part);
    return [style.outlineStyle, style.outlineWidth, style.stroke, style.strokeWidth].join();
  }).join(";");
  const all = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
  const unseen = [];
  for (const element of document.querySelectorAll(all)) {
    if (!element.checkVisibility()) continue;
    document.activeElement.blur();
    const before = look(element);
    element.focus();
    if (document.activeElement === element && look(element) === before) {
      unseen.push(element.outerHTML.slice(0, 120));
    }
  }
  return unseen;
}"""


@pytest.fixture(scope="module")
def states(host: ServedHost, acme_data: TenantData) -> dict[str, str]:
    """Return pages in states that the samples do not have, by name."""
    with Wire(host.url, ACME) as wire:
        settled = waiting_run(wire, gate(title="Fine?"), node("after"))
        accepted(wire, settled, "gate", {"action": "accept"})
        worker = wire.register(workflow([gate("ask", title="Fine?")]))
        call = node("call", "core.subWorkflow", config={"workflowId": worker})
        parent = waiting_run(wire, call)
        ended = wire.run("hello", {"name": "Ada"})["runId"]
    return {
        "a settled wait": f"/inbox/{settled}/gate",
        "a node that does not wait": f"/inbox/{settled}/after",
        "a run whose child waits": f"/runs/{parent}",
        "a run that has ended": f"/runs/{ended}",
        "an observed run": f"/runs/{acme_data.observed}",
        "filtered events": f"/runs/{ended}?type=node",
        "no runs": "/runs?tag=none",
        "no waits": "/inbox?workflowId=none",
        "nothing to compare": "/compare",
        "one run to compare": f"/compare?b={ended}",
        "no such page": "/nothing",
    }


STATES = (
    "a settled wait",
    "a node that does not wait",
    "a run whose child waits",
    "a run that has ended",
    "an observed run",
    "filtered events",
    "no runs",
    "no waits",
    "nothing to compare",
    "one run to compare",
    "no such page",
)


@pytest.fixture(scope="module", params=STATES)
def opened_state(request: pytest.FixtureRequest, window: Page, states: dict[str, str]) -> str:
    window.goto(states[request.param])
    return window.url


@each_scheme
def test_a_page_in_every_state_passes_the_accessibility_check(
    opened_state: str, page: Page, is_dark: bool
) -> None:
    return_to(page, opened_state)
    set_scheme(page, is_dark=is_dark)

    assert faults(page) == []


@each_scheme
def test_a_dialog_passes_the_accessibility_check(
    page: Page, acme_data: TenantData, is_dark: bool
) -> None:
    set_scheme(page, is_dark=is_dark)
    page.goto(f"/runs/{acme_data.probed}")

    page.locator("#e4 a").first.click()
    expect(page.locator("dialog[open]")).to_be_visible()

    assert faults(page) == []


@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_every_action_has_a_distinct_key(
    acme: Person, acme_data: TenantData, sample: Sample
) -> None:
    for ids in (acme_data.real, acme_data.probes):
        markup = acme.page(sample.probed(ids))

        links = [found for found in markup.all("a") if "button" in found.get("class", "").split()]
        keys = [found["data-key"] for _, found in markup.elements if "data-key" in found]
        assert [found["href"] for found in links if "data-key" not in found] == []
        single = [key for key in keys if key not in "12345"]
        assert len(set(single)) == len(single)


def test_every_key_is_listed_on_the_help_page(acme: Person, acme_data: TenantData) -> None:
    listed = {*re.findall("<kbd>(.+?)</kbd>", acme.get("/keys").text)}
    pages: list[Markup] = [acme.page(s.probed(acme_data.probes)) for s in SHOWN]
    used = {f["data-key"] for page in pages for _, f in page.elements if "data-key" in f}

    assert {word for key in used for word in key.split() if word not in "12345"} <= listed


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_no_page_is_wider_than_the_window(opened: Page, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": HEIGHT})

    wide = opened.evaluate("document.documentElement.scrollWidth")

    assert wide <= width


def test_no_injected_script_runs(opened: Page) -> None:
    opened.wait_for_load_state("load")

    assert opened.evaluate("window.pwned") is None


@pytest.mark.parametrize("sample", PARTS, ids=by_name)
def test_no_injected_script_runs_in_a_dialog(
    page: Page, acme_data: TenantData, sample: Sample
) -> None:
    page.goto("/settings")

    page.evaluate(OPEN, sample.probed(acme_data.probes))
    expect(page.locator("dialog[open]")).to_be_visible()

    assert page.evaluate("window.pwned") is None


# A link to the page that opens in a dialog.
OPEN = """(path) => {
  const link = document.createElement("a");
  link.href = path;
  link.dataset.dialog = "";
  document.body.append(link);
  link.click();
}"""


def test_every_page_is_shown_redirects_or_is_not_markup() -> None:
    names = {sample.page.name for sample in SAMPLES}

    assert {s.page.name for s in SHOWN} == names - LEADS_ON - NO_MARKUP
