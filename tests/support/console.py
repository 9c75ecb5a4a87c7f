"""A person at the console, without a browser: cookies, forms and page content."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import TracebackType
from typing import Any, Self

import httpx

DEADLINE_SECONDS = 60.0
SHORTENED = re.compile(r"csrf\" value=\"[0-9a-f]*\"")


class Markup(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """Return the attributes of every such element."""
        return [
            found
            for name, found in self.elements
            if name == tag and wanted.items() <= found.items()
        ]

    @property
    def links(self) -> list[str]:
        return [found["href"] for found in self.all("a") if "href" in found]


class Person:
    """A person at the console with one key."""

    def __init__(self, url: str) -> None:
        # Loopback needs no certificates, and loading them would slow down every test.
        self.http = httpx.Client(
            base_url=url, timeout=DEADLINE_SECONDS, trust_env=False, verify=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.http.close()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def page(self, path: str) -> Markup:
        """Return an existing page."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return Markup(answer.text)

    def token(self, path: str = "/settings") -> str:
        """Return the token of this person's forms."""
        return Markup(self.get(path).text).all("input", name="csrf")[0]["value"]

    def post(self, path: str, token: str | None = None, **fields: str) -> httpx.Response:
        """Send a form with the token of the session, unless another is given."""
        csrf = self.token() if token is None else token
        return self.http.post(path, data={"csrf": csrf, **fields})

    def sign_in(self, key: str, to: str = "/") -> httpx.Response:
        """Sign in on the sign-in page."""
        return self.http.post(
            "/sign-in", data={"csrf": self.token("/sign-in"), "key": key, "next": to}
        )

    @property
    def cookie(self) -> str:
        """Return the session cookie of the browser."""
        return self.http.cookies.get("wopr_session") or ""


def plain(answer: httpx.Response, ids: dict[str, str]) -> tuple[int, str]:
    """Return a response without the caller's own ids and without the tokens of its forms."""
    text = SHORTENED.sub("csrf", answer.text)
    for name, value in sorted(ids.items(), key=lambda each: -len(each[1])):
        text = text.replace(value, f"<{name}>")
    return answer.status_code, text
