"""Imports point one way. Read from the syntax tree, so that no import can hide in a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "wopr"

# Who may import whom. The order is that of the layers, from the command line down.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "cli": frozenset(
        {"testing", "api", "console", "http", "runtime", "fleet", "store", "security", "protocol"}
    ),
    # A host in memory is the served one without its socket.
    "testing": frozenset({"api", "http", "runtime", "nodes", "protocol"}),
    # Other frameworks as nodes: they use the builder, and it does not know them.
    "adapters": frozenset({"api", "agents", "nodes", "engine", "security", "protocol"}),
    # A client, and a builder that checks as the host will: it knows no served surface.
    "api": frozenset({"runtime", "agents", "nodes", "engine", "protocol"}),
    "console": frozenset({"http", "runtime", "store", "security", "protocol"}),
    "http": frozenset({"runtime", "store", "security", "protocol"}),
    "runtime": frozenset(
        {"agents", "nodes", "feedback", "fleet", "store", "engine", "security", "protocol"}
    ),
    # Nodes and agents act on the outside and must recognise what the guard there refuses:
    # `security.ssrf.DestinationDenied` is the answer to a forbidden destination.
    "agents": frozenset({"nodes", "store", "engine", "security", "protocol"}),
    "nodes": frozenset({"engine", "security", "protocol"}),
    "feedback": frozenset({"store", "security", "protocol"}),
    "fleet": frozenset({"store", "security", "protocol"}),
    "store": frozenset({"protocol"}),
    "engine": frozenset({"protocol"}),
    "security": frozenset({"protocol"}),
    "protocol": frozenset(),
}
PURE = ("protocol", "engine", "security")
# A clock, chance, waiting, the network or a disk would make a replay differ from the run.
IMPURE_MODULES = frozenset(
    "time random secrets uuid uuid_utils asyncio anyio sniffio threading concurrent multiprocessing "
    "socket ssl http httpx httpcore requests aiohttp urllib3 starlette uvicorn "
    "sqlite3 psycopg psycopg_pool procrastinate os pathlib subprocess tempfile shutil".split()
)
IMPURE_CALLS = frozenset({"now", "utcnow", "today"})


class Import(NamedTuple):
    file: str
    line: int
    module: str


def imports_of(layer: str) -> Iterator[Import]:
    for path in sorted((SOURCE / layer).rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for found in ast.walk(ast.parse(path.read_bytes(), filename=name)):
            for module in _modules(found):
                yield Import(name, getattr(found, "lineno", 0), module)


def _modules(found: ast.AST) -> list[str]:
    if isinstance(found, ast.Import):
        return [alias.name for alias in found.names]
    if isinstance(found, ast.ImportFrom):
        base = "." * found.level + (found.module or "")
        # `from wopr import runtime` imports the layer as much as `import wopr.runtime` does.
        return [f"wopr.{alias.name}" for alias in found.names] if base == "wopr" else [base]
    return []


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "wopr" and len(parts) > 1 and parts[1] in MAY_IMPORT else None


def test_every_folder_of_the_source_is_a_layer_of_the_table() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}

    assert folders <= MAY_IMPORT.keys()


def test_the_table_itself_only_points_down() -> None:
    order = list(MAY_IMPORT)

    for layer, allowed in MAY_IMPORT.items():
        assert all(order.index(below) > order.index(layer) for below in allowed), layer


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_what_the_table_allows(layer: str) -> None:
    wrong = [
        found
        for found in imports_of(layer)
        if (other := layer_of(found.module)) is not None
        and other != layer
        and other not in MAY_IMPORT[layer]
    ]

    assert wrong == []


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_has_no_relative_imports_that_would_escape_this_reading(layer: str) -> None:
    relative = [found for found in imports_of(layer) if found.module.startswith(".")]

    assert relative == []


@pytest.mark.parametrize("layer", PURE)
def test_a_pure_layer_imports_no_clock_chance_network_or_disk(layer: str) -> None:
    impure = [
        found for found in imports_of(layer) if found.module.partition(".")[0] in IMPURE_MODULES
    ]

    assert impure == []


@pytest.mark.parametrize("layer", PURE)
def test_a_pure_layer_never_asks_what_time_it_is(layer: str) -> None:
    asked = [
        f"{path.relative_to(SOURCE).as_posix()}:{call.lineno}"
        for path in sorted((SOURCE / layer).rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in IMPURE_CALLS
    ]

    assert asked == []


def test_only_the_command_line_reads_argv() -> None:
    readers = {
        path.relative_to(SOURCE).parts[0]
        for path in SOURCE.rglob("*.py")
        for found in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(found, ast.Attribute) and found.attr == "argv"
    }

    assert readers <= {"cli"}
