"""`python -m docs.screenshots`: take the screenshots of the README from a host with demo data."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import httpx
from playwright.sync_api import Browser
from tests.support.browser import chromium, launched
from tests.support.host import ServedHost, served

from docs.demo_runs import make_runs

IMAGES: Final = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 860
DEADLINE_SECONDS: Final = 20.0


def main() -> None:
    """Take every screenshot, in light and dark."""
    path = chromium()
    if path is None:
        sys.exit("there is no chromium; `make browser` installs it")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), "--conformance") as host:
        key = _key(host)
        with httpx.Client(
            base_url=host.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=DEADLINE_SECONDS,
            trust_env=False,
        ) as http:
            pages = {"runs": "/runs", **make_runs(http)}
        with launched(path) as browser:
            _take_all(browser, host.url, key, pages)
            host.command("fleet", "demo", f"{folder}/demo", "--push", *_as(host, key))
            fleet = {"fleet": "/fleet", "fleet-agent": "/fleet/agents/coder?window=all"}
            _take_all(browser, host.url, key, fleet)


def _key(host: ServedHost) -> str:
    """Create a key that may register the scripted agents of the demo."""
    made = ("keys", "create", "--tenant", "shop", "--role", "admin", "--test")
    return host.command(*made, "--scope", "conformance:author").strip()


def _as(host: ServedHost, key: str) -> tuple[str, ...]:
    """Return the options for a command that calls this host."""
    return ("--url", host.url, "--api-key", key)


def _take_all(browser: Browser, url: str, key: str, pages: dict[str, str]) -> None:
    for scheme in ("light", "dark"):
        _take(browser, url, key, scheme, pages)


def _take(browser: Browser, url: str, key: str, scheme: str, pages: dict[str, str]) -> None:
    context = browser.new_context(
        base_url=url,
        viewport={"width": WIDTH, "height": HEIGHT},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto("/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Runs").wait_for()
    for name, path in pages.items():
        page.goto(path)
        page.locator("main h1").wait_for()
        page.screenshot(path=IMAGES / f"{name}-{scheme}.png")
    context.close()


if __name__ == "__main__":
    main()
