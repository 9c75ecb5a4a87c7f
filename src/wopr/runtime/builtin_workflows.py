"""What comes with the package: the first workflow to try, and what conformance checks need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable

from wopr.protocol.documents import Json, JsonObject
from wopr.runtime.definition_files import load_definition

FIXTURE_PREFIX = "conformance-"
# What a fixture may ask of a host beyond its node types, and this host does not offer.
_UNMET_METADATA = "requiresWorkspaceAgent"


def hello() -> JsonObject:
    """Give the workflow that a new host already has."""
    return _read(_shipped() / "hello.yaml")


def conformance_fixtures() -> Iterator[JsonObject]:
    """Give every conformance workflow, by name, whether or not this host can run it."""
    return _read_all("conformance")


def conformance_agents() -> Iterator[JsonObject]:
    """Give the agent manifests that conformance checks look for."""
    return _read_all("agents")


def runnable_fixtures(
    registered: Mapping[str, JsonObject], packs: Collection[str] = ()
) -> list[str]:
    """Name the registered fixtures that do here what they are for: listing one is a promise.

    `packs` are those that the installed agents come from.
    """
    return sorted(
        name
        for name, document in registered.items()
        if name.startswith(FIXTURE_PREFIX) and _can_run(document, registered, packs)
    )


def _can_run(
    document: JsonObject, registered: Mapping[str, JsonObject], packs: Collection[str]
) -> bool:
    nodes: list[JsonObject] = document["nodes"]
    children: list[Json] = [
        node["config"].get("workflowId") for node in nodes if node["typeId"] == "core.subWorkflow"
    ]
    # Checks that a host without conversations refuses it.
    if document["id"] == "conformance-conversation-capability-negotiation":
        return False
    metadata: JsonObject = document["metadata"]
    pack = metadata.get("requiresInstalledPack")
    if _UNMET_METADATA in metadata or (pack is not None and pack not in packs):
        return False
    return all(child in registered for child in children)


def _shipped() -> Traversable:
    return files("wopr") / "workflows"


def _read_all(folder: str) -> Iterator[JsonObject]:
    for file in sorted((_shipped() / folder).iterdir(), key=lambda found: found.name):
        if file.name.endswith(".json"):
            yield _read(file)


def _read(file: Traversable) -> JsonObject:
    with as_file(file) as path:
        return load_definition(path)
