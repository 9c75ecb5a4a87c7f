"""A real browser: the system's Chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.wire.host import ACME

Open: TypeAlias = Callable[..., Page]
# A busy machine may keep a page waiting for its answer.
DEADLINE_MS = 60_000
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where it is; None when there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """Start it without a window. Its sandbox needs a user who is not root."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=arguments, timeout=DEADLINE_MS
        )
        expect.set_options(timeout=DEADLINE_MS)
        yield browser
        browser.close()


def sign_in(page: Page, key: str = ACME) -> Page:
    """Sign in on the page that asks for it, and go on to the page that was meant."""
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    return page


def press(page: Page, *keys: str) -> None:
    """Press keys one after the other, once the scripts that listen for them are there."""
    page.wait_for_load_state("load")
    for key in keys:
        page.keyboard.press(key)
