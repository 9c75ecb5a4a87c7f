"""Accessibility of every page: keyboard, light and dark, narrow screens, and untrusted text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import (  # type: ignore[import-untyped]  # no types in it
    Axe,
)
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.console.samples import LEADS_ON, NO_MARKUP, SAMPLES, SHOWN, Sample, TenantData
from tests.support.browser import DEADLINE_MS, sign_in
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import node, workflow
from tests.support.host import ACME, ServedHost
from tests.support.interrupts import accepted, gate, waiting_run

pytestmark = pytest.mark.sqlite("what a browser makes of a page does not depend on the store")

SERIOUS = ("serious", "critical")
WIDTHS = (390, 1280)
# Console pages that also open in a dialog.
PARTS = [s for s in SHOWN if s.page.name not in ("signIn", "signOut")]

Window = Callable[..., Page]


def by_name(sample: Sample) -> str:
    return sample.page.name


@pytest.fixture(scope="module")
def window(browser: Browser, host: ServedHost) -> Iterator[Window]:
    """Return a signed-in window; tests that request the same kind share it."""
    contexts: dict[tuple[str, int], BrowserContext] = {}

    def look(scheme: str = "light", width: int = 1280) -> Page:
        key = (scheme, width)
        if key not in contexts:
            contexts[key] = browser.new_context(
                base_url=host.url,
                color_scheme="dark" if scheme == "dark" else "light",
                viewport={"width": width, "height": 800},
                reduced_motion="reduce",
            )
            contexts[key].set_default_timeout(DEADLINE_MS)
            page = contexts[key].new_page()
            page.goto("/settings")
            sign_in(page)
        return contexts[key].pages[0]

    yield look
    for context in contexts.values():
        context.close()


# Rules that no page may break, at any impact.
ALWAYS = ("link-in-text-block", "empty-table-header")


def faults(page: Page) -> list[str]:
    """Return the findings of an accessibility check, by rule and first faulty element."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {each['nodes'][0]['target']} of {len(each['nodes'])}"
        for each in found
        if each["impact"] in SERIOUS or each["id"] in ALWAYS
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_the_accessibility_check_finds_nothing_serious(
    window: Window, acme_data: TenantData, sample: Sample, scheme: str
) -> None:
    page = window(scheme)

    page.goto(sample.probed(acme_data.probes))

    assert faults(page) == []


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_a_page_in_every_state_passes_the_accessibility_check(
    window: Window, states: dict[str, str], state: str, scheme: str
) -> None:
    page = window(scheme)

    page.goto(states[state])

    assert faults(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_dialog_passes_the_accessibility_check(
    window: Window, acme_data: TenantData, scheme: str
) -> None:
    page = window(scheme)
    page.goto(f"/runs/{acme_data.probed}")

    page.locator("#e4 a").first.click()
    expect(page.locator("dialog[open]")).to_be_visible()

    assert faults(page) == []


@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_every_focused_element_is_visibly_focused(
    window: Window, acme_data: TenantData, sample: Sample
) -> None:
    page = window()
    page.goto(sample.probed(acme_data.probes))
    # From here on the browser assumes a keyboard user.
    page.keyboard.press("Tab")

    unseen = page.evaluate(UNSEEN)

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


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_no_page_is_wider_than_the_window(
    window: Window, acme_data: TenantData, sample: Sample, width: int
) -> None:
    page = window(width=width)
    page.goto(sample.probed(acme_data.probes))

    wide = page.evaluate("document.documentElement.scrollWidth")

    assert wide <= width


@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_no_injected_script_runs(window: Window, acme_data: TenantData, sample: Sample) -> None:
    page = window()

    page.goto(sample.probed(acme_data.probes))
    page.wait_for_load_state("load")

    assert page.evaluate("window.pwned") is None


@pytest.mark.parametrize("sample", PARTS, ids=by_name)
def test_no_injected_script_runs_in_a_dialog(
    window: Window, acme_data: TenantData, sample: Sample
) -> None:
    page = window()
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
