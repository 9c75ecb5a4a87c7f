"""A real browser: the system's Chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.host import ACME

Open: TypeAlias = Callable[..., Page]
# A busy machine may delay a response.
DEADLINE_MS = 60_000
# The first one has no window at all and takes less processor time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Return the path of Chromium; None when it is missing."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """Start it headless. Its sandbox requires a user other than root."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=arguments, timeout=DEADLINE_MS
        )
        expect.set_options(timeout=DEADLINE_MS)
        yield browser
        browser.close()


def sign_in(page: Page, key: str = ACME) -> Page:
    """Sign in on the sign-in page, and continue to the requested page."""
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    return page


def press(page: Page, *keys: str) -> None:
    """Press keys one after the other, once the page's scripts have loaded."""
    page.wait_for_load_state("load")
    for key in keys:
        page.keyboard.press(key)
