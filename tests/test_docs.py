"""The reference is what the code says."""

from __future__ import annotations

import pytest

from docs.generate import DOCS, PAGES, page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_what_the_code_says(name: str) -> None:
    written = (DOCS / "reference" / f"{name}.md").read_text()

    assert written == page(name), "stale: run `make docs`"


def test_the_reference_holds_no_page_that_nobody_writes() -> None:
    pages = {path.stem for path in (DOCS / "reference").glob("*.md")}

    assert pages == PAGES.keys()
