"""Project conventions that no linter checks: codes, sizes, locks and documents."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import wopr
from wopr.protocol.errors import CATALOGUE, RUN_CODES, WoprError

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "wopr"
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OWN_TEXTS = sorted(
    path
    for folder in ("src", "tests", "bench", "docs", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".yaml", ".toml"}
)

# A module is one concept; above this length, check whether it still is.
MAX_LINES = 800


class Code(NamedTuple):
    where: str
    code: str


def test_every_default_code_of_an_error_is_in_the_catalogue() -> None:
    unknown = {
        error.__name__: error.default_code
        for error in _errors()
        if error.default_code not in CATALOGUE
    }

    assert unknown == {}


def test_every_code_of_a_raised_error_is_in_the_catalogue() -> None:
    names = frozenset(error.__name__ for error in _errors())

    raised = list(_codes(names))

    assert raised
    assert [each for each in raised if each.code not in CATALOGUE] == []


def test_every_code_that_can_end_a_run_is_known() -> None:
    given = list(_codes(frozenset({"RunError", "NodeFailure"})))

    assert given
    assert [e for e in given if e.code not in RUN_CODES and e.code not in CATALOGUE] == []


def _errors() -> list[type[WoprError]]:
    """Return every error class of the package."""
    for module in pkgutil.walk_packages(wopr.__path__, "wopr."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [WoprError]
    for error in found:
        found += error.__subclasses__()
    return [error for error in found if error.__module__.startswith("wopr.")]


def _codes(calls: frozenset[str]) -> Iterator[Code]:
    """Return every literal `code=` in calls of these names, from both branches of a condition."""
    for path in sorted(SOURCE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(call, ast.Call) or _name(call.func) not in calls:
                continue
            for keyword in call.keywords:
                if keyword.arg == "code":
                    where = f"{path.relative_to(SOURCE).as_posix()}:{call.lineno}"
                    yield from (Code(where, code) for code in _literals(keyword.value))


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _literals(value: ast.expr) -> list[str]:
    if isinstance(value, ast.IfExp):
        return [*_literals(value.body), *_literals(value.orelse)]
    return [value.value] if isinstance(value, ast.Constant) and isinstance(value.value, str) else []


def test_no_module_is_too_long() -> None:
    long = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if len(path.read_text().splitlines()) > MAX_LINES
    ]

    assert long == []


def test_every_package_has_a_docstring() -> None:
    packages = sorted(SOURCE.rglob("__init__.py"))

    silent = [str(path) for path in packages if not ast.get_docstring(ast.parse(path.read_bytes()))]

    assert silent == []


def test_no_todo_is_left_in_the_source() -> None:
    # Split, so that this file does not find itself.
    mark = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")

    left = [str(path) for path in OWN_TEXTS if mark.search(path.read_text())]

    assert left == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_no_lock_names_a_package_index(lock: Path) -> None:
    text = lock.read_text()

    found = re.findall(r".*(?:://|--(?:extra-)?index|--find-links|--trusted-host| @ ).*", text)

    assert found == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_every_package_with_hashes(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    packages = [place for place, line in enumerate(lines) if re.match(r"[a-z0-9]", line)]

    assert packages
    for place in packages:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+( ; .+)? \\$", lines[place])
        assert re.match(r"    --hash=sha256:[0-9a-f]{64}", lines[place + 1])


def test_the_locks_contain_what_the_project_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups: dict[str, list[str]] = project["dependency-groups"]
    wanted = {
        "serve.lock": [*project["project"]["dependencies"], *groups["build"]],
        "dev.lock": [*project["project"]["dependencies"], *groups["build"], *groups["dev"]],
    }

    for lock in LOCKS:
        pinned = set(re.findall(r"^([a-z0-9._-]+)", lock.read_text(), re.MULTILINE))
        assert {_package(each) for each in wanted[lock.name]} <= pinned


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _package(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[._-]+", "-", match[0]).lower()


def test_the_source_imports_only_declared_dependencies() -> None:
    project = _project()
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {_package(each) for group in groups for each in group}
    offered = packages_distributions()

    undeclared = {
        name
        for name in _third_parties()
        if declared.isdisjoint(_package(each) for each in offered.get(name, ()))
    }

    assert undeclared == set()


def _third_parties() -> set[str]:
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for found in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(found, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in found.names}
            elif isinstance(found, ast.ImportFrom) and found.module:
                names.add(found.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"wopr"}


def test_the_versions_of_package_and_project_agree() -> None:
    assert wopr.__version__ == _project()["version"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_document_names_a_path_of_a_machine(document: Path) -> None:
    text = document.read_text()

    found = re.findall(r"(?<![\w.~/<>-])/(?:home|root|Users|work|tmp|opt|mnt)/\S*", text)

    assert found == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_link_between_documents_is_valid(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text())

    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_readme_names_the_commands_to_run_and_to_test() -> None:
    text = (ROOT / "README.md").read_text()

    assert "make serve" in text
    assert "make test" in text
