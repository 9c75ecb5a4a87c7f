"""Build the documents as a searchable site in `build/site`: `make docs-site`.

The pages are the Markdown files of the repository. They link to each other by path, so they are
copied into one folder first: `README.md` becomes the start page, and a file that a page links to
is copied beside the pages. The build fails on a link to a missing page or a missing heading.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
PAGES = BUILD / "site-pages"
# Pages outside `docs/`, and their paths on the site.
OTHER_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples/index.md",
}
# The order of the navigation. A name that ends with `/` is a section with every page of the folder.
NAVIGATION = {
    "Overview": "index.md",
    "Tutorial": "tutorial.md",
    "Concepts": "concepts.md",
    "Examples": "examples/index.md",
    "How-to guides": "how-to/",
    "Reference": "reference/",
    "Operations": "operations.md",
    "Scaling": "scaling.md",
    "Security": "security.md",
    "Benchmarks": "benchmarks.md",
    "Glossary": "glossary.md",
    "Architecture": "architecture.md",
    "Contributing": "contributing.md",
    "Decisions": "decisions/",
    "Changelog": "changelog.md",
}
CONFIG = """\
[project]
site_name = "WOPR"
site_description = "A durable host for OpenWOP: runs, agents and people on one event log."
docs_dir = "site-pages"
site_dir = "site"
nav = {navigation}

[project.theme]
font = false
features = ["content.code.copy", "navigation.top", "search.highlight", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
"""
# A code block with a file name: the site shows the name as a title.
TITLE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)([^)]*)\)")


def main() -> int:
    """Build the site and return the exit code of the builder."""
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    copy_pages()
    config = BUILD / "zensical.toml"
    config.write_text(CONFIG.format(navigation=navigation()))
    build = ("zensical", "build", "--clean", "--strict", "--config-file", str(config))
    return subprocess.run([sys.executable, "-m", *build], cwd=BUILD, check=False).returncode


def copy_pages() -> None:
    """Copy every page, with its links adapted, and every file that a page links to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    pages = {ROOT / source: target for source, target in OTHER_PAGES.items()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        pages[path] = path.relative_to(ROOT / "docs").as_posix()
    for source, target in pages.items():
        text = LINK.sub(partial(_adapt, source=source, pages=pages), source.read_text())
        text = TITLE.sub(r'```\1 title="\2"', text)
        (PAGES / target).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / target).write_text(text)


def _adapt(link: re.Match[str], source: Path, pages: dict[Path, str]) -> str:
    """Return a link for the site. A link to a folder becomes plain text."""
    image, text, path, rest = link.groups()
    linked = (source.parent / path).resolve()
    if linked.is_dir():
        return text
    target = pages.get(linked)
    if target is None:
        target = linked.relative_to(ROOT).as_posix().removeprefix("docs/")
        (PAGES / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(linked, PAGES / target)
    return f"{image}[{text}]({'../' * pages[source].count('/')}{target}{rest})"


def navigation() -> str:
    """Return the navigation as a TOML value."""
    entries: list[str] = []
    for title, target in NAVIGATION.items():
        if target.endswith("/"):
            inner = sorted(
                path.relative_to(PAGES).as_posix() for path in PAGES.glob(f"{target}*.md")
            )
            entries.append(f"{{ {json.dumps(title)} = {json.dumps(inner)} }}")
        else:
            entries.append(f"{{ {json.dumps(title)} = {json.dumps(target)} }}")
    return f"[{', '.join(entries)}]"


if __name__ == "__main__":
    sys.exit(main())
