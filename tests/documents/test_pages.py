"""Links, paths and names in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.fences import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_every_path_named_in_the_architecture_exists() -> None:
    named = set(re.findall(r"\b(?:src|tests)/[\w/.-]*\w", ARCHITECTURE.read_text()))

    assert len(named) > 50
    assert sorted(path for path in named if not _exists(ROOT / path)) == []


def _exists(path: Path) -> bool:
    """Check for a file, or a folder with files: a deleted package may leave an empty cache."""
    return path.is_file() or any(each.is_file() for each in path.glob("*"))


def test_the_architecture_names_every_source_folder() -> None:
    text = ARCHITECTURE.read_text()
    folders = [path.parent for path in (ROOT / "src" / "wopr").glob("*/__init__.py")]

    assert [folder.name for folder in folders if f"`src/wopr/{folder.name}`" not in text] == []


def test_every_code_name_in_the_glossary_exists() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "wopr").rglob("*.py"))
    entries = re.findall(r"In the code: ((?:`\w+`(?: and )?)+)", GLOSSARY.read_text())
    names = {name for entry in entries for name in re.findall(r"\w+(?=`)", entry)}

    unknown = {
        name
        for name in names
        if not re.search(rf"^\s*(?:class|def) {name}\b", source, re.MULTILINE)
    }

    assert names
    assert unknown == set()


def test_the_terms_of_the_glossary_are_in_alphabetical_order() -> None:
    terms = re.findall(r"^\| (?!Term |---)(.+?) \|", GLOSSARY.read_text(), re.MULTILINE)

    assert terms == sorted(terms, key=str.lower)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_link_to_a_heading_is_valid(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", document.read_text())

    broken = [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in _anchors(document.parent / target if target else document)
    ]

    assert broken == []


def _anchors(document: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in words}
