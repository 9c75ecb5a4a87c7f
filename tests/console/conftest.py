from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.console.samples import TenantData
from tests.support.browser import DEADLINE_MS, Open, chromium, launched
from tests.support.client import Wire
from tests.support.console import Person
from tests.support.host import ACME, GLOBEX, ServedHost

SignedIn = Callable[..., Person]


@pytest.fixture
def signed_in(host: ServedHost) -> Iterator[SignedIn]:
    """Sign people in; by default on the shared host."""
    people: list[Person] = []

    def person(key: str = ACME, at: ServedHost = host) -> Person:
        people.append(Person(at.url))
        assert people[-1].sign_in(key).status_code == 303
        return people[-1]

    yield person
    for each in people:
        each.http.close()


@pytest.fixture
def anonymous(host: ServedHost) -> Iterator[Person]:
    """A person who has not signed in."""
    with Person(host.url) as person:
        yield person


@pytest.fixture
def acme(signed_in: SignedIn) -> Person:
    return signed_in(ACME)


@pytest.fixture
def globex(signed_in: SignedIn) -> Person:
    return signed_in(GLOBEX)


@pytest.fixture
def wire(host: ServedHost) -> Iterator[Wire]:
    """Call the API beside the console."""
    with Wire(host.url, ACME) as caller:
        yield caller


@pytest.fixture(scope="session")
def acme_data(host: ServedHost) -> Iterator[TenantData]:
    """Data of acme for every page."""
    with Wire(host.url, ACME) as caller:
        belongings = TenantData(caller, host)
        yield belongings
        caller.post(f"/v1/runs/{belongings.run_id}/cancel")


@pytest.fixture(scope="session")
def globex_data(host: ServedHost) -> Iterator[TenantData]:
    """Data of globex: the same as acme's under other names."""
    with Wire(host.url, GLOBEX) as caller:
        belongings = TenantData(caller, host, "globex")
        yield belongings
        caller.post(f"/v1/runs/{belongings.run_id}/cancel")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None and os.environ.get("CI") == "true":
        pytest.fail("there is no chromium; `make browser` installs it")
    if path is None:
        pytest.skip("there is no chromium; `make browser` installs it")
    with launched(path) as started:
        yield started


@pytest.fixture
def open_page(browser: Browser, host: ServedHost) -> Iterator[Open]:
    """Open pages in separate windows; an error on a page fails the test."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_one(path: str = "/", **options: bool) -> Page:
        context = browser.new_context(base_url=host.url, java_script_enabled=not options.get("no"))
        contexts.append(context)
        context.set_default_timeout(DEADLINE_MS)
        page = context.new_page()
        # A browser reports a late form; the test that sends one expects it.
        late = "409 (Conflict)" if options.get("late") else "\0"
        page.on(
            "console",
            lambda said: (
                complaints.append(said.text) if _bad(said.type) and late not in said.text else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


def _bad(kind: str) -> bool:
    return kind in ("error", "warning")
