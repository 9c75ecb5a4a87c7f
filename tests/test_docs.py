"""The reference pages match the code."""

from __future__ import annotations

import pytest

from docs.generate import DOCS, PAGES, page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_matches_the_code(name: str) -> None:
    written = (DOCS / "reference" / f"{name}.md").read_text()

    assert written == page(name), "stale: run `make docs`"


def test_the_reference_has_no_page_without_a_generator() -> None:
    pages = {path.stem for path in (DOCS / "reference").glob("*.md")}

    assert pages == PAGES.keys()
