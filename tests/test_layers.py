"""Imports point one way. Read from the syntax tree, which includes imports in functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "wopr"

# The layers from the command line down. A layer may import the layers below it, as far as
# `NOT_ALLOWED` does not exclude them.
LAYERS = (
    "cli",
    "testing",
    "adapters",
    "api",
    "console",
    "http",
    "host",
    "services.discovery",
    "kahn",
    "feedback",
    "services",
    "runs",
    "cluster",
    "nodes",
    "agents",
    "process",
    "store",
    "engine",
    "security",
    "protocol",
)
# Exceptions from the order: layers that must not import each other although one is above.
NOT_ALLOWED: dict[str, frozenset[str]] = {
    # The Python API is a client: it imports neither the routes nor the pages.
    "api": frozenset({"console", "http"}),
    "adapters": frozenset({"console", "http", "host", "services", "kahn", "feedback", "store"}),
    "console": frozenset({"agents", "nodes", "cluster", "engine"}),
    "http": frozenset({"agents", "nodes", "cluster", "engine"}),
    "kahn": frozenset({"nodes"}),
    "feedback": frozenset({"nodes", "agents"}),
    "agents": frozenset({"process"}),
    "store": frozenset({"engine", "security"}),
    "engine": frozenset({"security"}),
}
MAY_IMPORT: dict[str, frozenset[str]] = {
    layer: frozenset(LAYERS[place + 1 :]) - NOT_ALLOWED.get(layer, frozenset())
    for place, layer in enumerate(LAYERS)
}
PURE = ("protocol", "engine", "security")
# A clock, randomness, waiting, the network or a disk would make a replay differ from the run.
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


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Parse a file once for all tests of a process."""
    return tuple(ast.walk(ast.parse(path.read_bytes(), filename=str(path))))


def imports_of(layer: str) -> Iterator[Import]:
    for path in sorted((SOURCE / layer.replace(".", "/")).rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if layer_of(module_of(path)) != layer:
            continue
        for found in nodes_of(path):
            for module in _modules(found):
                yield Import(name, getattr(found, "lineno", 0), module)


def module_of(path: Path) -> str:
    parts = ("wopr", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _modules(found: ast.AST) -> list[str]:
    if isinstance(found, ast.Import):
        return [alias.name for alias in found.names]
    if isinstance(found, ast.ImportFrom):
        base = "." * found.level + (found.module or "")
        # `from wopr import runs` imports the layer as much as `import wopr.runs` does.
        return [f"wopr.{alias.name}" for alias in found.names] if base == "wopr" else [base]
    return []


def layer_of(module: str) -> str | None:
    """Return the layer of a module: a sub-package that is a layer counts before its package."""
    parts = module.split(".")
    if parts[0] != "wopr":
        return None
    for length in (2, 1):
        name = ".".join(parts[1 : 1 + length])
        if name in MAY_IMPORT:
            return name
    return None


def test_every_source_folder_is_a_layer_of_the_table() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}

    assert folders == {layer for layer in LAYERS if "." not in layer}


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


def test_modules_do_not_import_each_other_even_for_types() -> None:
    assert strongly_connected(import_graph()) == []


def import_graph() -> dict[str, set[str]]:
    """Return the imports of each module, also inside functions and behind `TYPE_CHECKING`."""
    modules = {module_of(path): path for path in SOURCE.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        graph[module] = set()
        for found in nodes_of(path):
            if isinstance(found, ast.Import):
                graph[module] |= {alias.name for alias in found.names} & modules.keys()
            elif isinstance(found, ast.ImportFrom) and found.module in modules:
                inner = {f"{found.module}.{alias.name}" for alias in found.names}
                graph[module] |= inner & modules.keys() or {found.module}
    return graph


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return groups of modules that import each other (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            start = stack.index(module)
            group = sorted(stack[start:])
            del stack[start:]
            if len(group) > 1:
                groups.append(group)

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return groups


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_no_relative_import_bypasses_this_check(layer: str) -> None:
    relative = [found for found in imports_of(layer) if found.module.startswith(".")]

    assert relative == []


@pytest.mark.parametrize("layer", PURE)
def test_a_pure_layer_imports_no_clock_randomness_network_or_disk(layer: str) -> None:
    impure = [
        found for found in imports_of(layer) if found.module.partition(".")[0] in IMPURE_MODULES
    ]

    assert impure == []


@pytest.mark.parametrize("layer", PURE)
def test_a_pure_layer_never_reads_the_time(layer: str) -> None:
    asked = [
        f"{path.relative_to(SOURCE).as_posix()}:{call.lineno}"
        for path in sorted((SOURCE / layer).rglob("*.py"))
        for call in nodes_of(path)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in IMPURE_CALLS
    ]

    assert asked == []


def test_only_the_command_line_reads_argv() -> None:
    readers = {
        path.relative_to(SOURCE).parts[0]
        for path in SOURCE.rglob("*.py")
        for found in nodes_of(path)
        if isinstance(found, ast.Attribute) and found.attr == "argv"
    }

    assert readers <= {"cli"}
