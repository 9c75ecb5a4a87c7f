"""The workflows that come with the package: the first one to try, and the conformance fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable

from wopr.protocol.documents import JsonObject
from wopr.runtime.definition_files import load_definition


def hello() -> JsonObject:
    """Give the workflow that a new host already has."""
    return _read(_shipped() / "hello.yaml")


def conformance_fixtures() -> Iterator[JsonObject]:
    """Give every conformance workflow, by name, whether or not this host can run it."""
    fixtures = (_shipped() / "conformance").iterdir()
    for file in sorted(fixtures, key=lambda found: found.name):
        if file.name.endswith(".json"):
            yield _read(file)


def _shipped() -> Traversable:
    return files("wopr") / "workflows"


def _read(file: Traversable) -> JsonObject:
    with as_file(file) as path:
        return load_definition(path)
