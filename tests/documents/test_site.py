"""The documentation site builds without a warning and has every page in its navigation."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import site


def test_the_site_builds_without_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(site, "BUILD", tmp_path)
    monkeypatch.setattr(site, "PAGES", tmp_path / "site-pages")

    status = site.main()

    assert status == 0, capfd.readouterr().out
    assert (tmp_path / "site" / "tutorial" / "index.html").exists()


def test_every_document_is_in_the_navigation() -> None:
    documents = {
        path.relative_to(site.ROOT / "docs").as_posix()
        for path in (site.ROOT / "docs").rglob("*.md")
    } | set(site.OTHER_PAGES.values())
    sections = tuple(target for target in site.NAVIGATION.values() if target.endswith("/"))

    missing = documents - set(site.NAVIGATION.values())

    assert [document for document in missing if not document.startswith(sections)] == []
