"""What comes with the package: the first workflow to try, and what conformance checks need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable

from wopr.protocol.documents import Json, JsonObject
from wopr.runtime.definition_files import load_definition

FIXTURE_PREFIX = "conformance-"


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
    registered: Mapping[str, JsonObject], agents: Collection[str] = ()
) -> list[str]:
    """Name the registered fixtures that this host can run as intended.

    `agents` are the ids of the installed agents.
    """
    return sorted(
        name
        for name, document in registered.items()
        if name.startswith(FIXTURE_PREFIX) and _can_run(document, registered, agents)
    )


def _can_run(
    document: JsonObject, registered: Mapping[str, JsonObject], agents: Collection[str]
) -> bool:
    nodes: list[JsonObject] = document["nodes"]
    children: list[Json] = [
        node["config"].get("workflowId") for node in nodes if node["typeId"] == "core.subWorkflow"
    ]
    # Checks that a host without conversations refuses it.
    if document["id"] == "conformance-conversation-capability-negotiation":
        return False
    metadata: JsonObject = document["metadata"]
    pack, agent = metadata.get("requiresInstalledPack"), metadata.get("requiresWorkspaceAgent")
    packs = {name.rpartition(".")[0] for name in agents}
    if (pack is not None and pack not in packs) or (agent is not None and agent not in agents):
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
