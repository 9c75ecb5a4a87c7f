"""Definitions that are registered at startup: built-in ones, the operator's, and fixtures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable

import msgspec
import structlog

from wopr.agents.registry import AgentRegistry
from wopr.process.settings import Settings
from wopr.protocol.documents import Json, JsonObject, is_list, is_object
from wopr.protocol.errors import WoprError
from wopr.runs.definitions.files import find_definitions, load_definition
from wopr.runs.definitions.library import Library
from wopr.store.port import SHARED

FIXTURE_PREFIX = "conformance-"
_EXISTS = "workflow_exists"
# Texts for people. An upgraded database has the built-in definitions with their earlier texts.
_TEXTS = frozenset({"description", "notes"})

log = structlog.get_logger("wopr.host")


def hello_workflow() -> JsonObject:
    """Read the workflow that every new host has."""
    return _read(_package_files() / "hello.yaml")


def conformance_fixtures() -> Iterator[JsonObject]:
    """Read every conformance workflow, whether or not this host can run it."""
    return _read_all("conformance")


def conformance_agents() -> Iterator[JsonObject]:
    """Read the agent manifests of conformance checks."""
    return _read_all("agents")


def runnable_fixtures(
    registered: Mapping[str, JsonObject], agents: Collection[str] = ()
) -> list[str]:
    """List the registered fixtures that this host can run.

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
    # The fixture is for hosts without conversations.
    if document["id"] == "conformance-conversation-capability-negotiation":
        return False
    metadata: JsonObject = document["metadata"]
    pack, agent = metadata.get("requiresInstalledPack"), metadata.get("requiresWorkspaceAgent")
    packs = {name.rpartition(".")[0] for name in agents}
    if (pack is not None and pack not in packs) or (agent is not None and agent not in agents):
        return False
    return all(child in registered for child in children)


def _package_files() -> Traversable:
    return files("wopr") / "workflows"


def _read_all(folder: str) -> Iterator[JsonObject]:
    for file in sorted((_package_files() / folder).iterdir(), key=lambda found: found.name):
        if file.name.endswith(".json"):
            yield _read(file)


def _read(file: Traversable) -> JsonObject:
    with as_file(file) as path:
        return load_definition(path)


async def register_workflows(settings: Settings, library: Library) -> list[str]:
    """Register the operator's and the built-in workflows; return the ids of runnable fixtures."""
    given = [
        (str(path), load_definition(path))
        for directory in settings.workflows
        for path in find_definitions(directory)
    ]
    names = {str(document.get("id")) for _, document in given}
    built_in = [("built in", hello_workflow())]
    if settings.conformance:
        built_in += [("built in", document) for document in conformance_fixtures()]
    given += [(source, d) for source, d in built_in if str(d.get("id")) not in names]
    names = {str(document.get("id")) for _, document in given}
    registered = {
        str(document["id"]): document
        for source, document in given
        if await _register(library, source, document, names)
    }
    log.info(
        "workflows registered", registered=len(registered), skipped=len(given) - len(registered)
    )
    agents = conformance_agents() if settings.conformance else ()
    return runnable_fixtures(registered, {str(a["agentId"]) for a in agents})


async def _register(
    library: Library, source: str, document: JsonObject, alongside: Collection[str]
) -> bool:
    """Register one definition. A definition that cannot run here is left out and logged."""
    try:
        await library.register(SHARED, document, alongside=alongside, has_quota=False)
    except WoprError as error:
        is_built_in = source == "built in"
        if is_built_in and error.code == _EXISTS and await _differs_in_texts(library, document):
            return True
        level = log.debug if is_built_in else log.warning
        level("workflow left out", source=source, id=document.get("id"), reason=str(error))
        return False
    for warning in await library.warnings(SHARED, document):
        log.warning(
            "workflow has a setting without effect",
            source=source,
            id=document["id"],
            path=warning.path,
            message=warning.message,
        )
    return True


async def _differs_in_texts(library: Library, document: JsonObject) -> bool:
    """Return whether the stored version of a definition differs only in texts for people."""
    row = await library.row(SHARED, str(document["id"]), str(document["version"]))
    is_same: bool = _without_texts(msgspec.json.decode(row.body)) == _without_texts(document)
    return is_same


def _without_texts(value: Json) -> Json:
    if is_list(value):
        return [_without_texts(item) for item in value]
    if is_object(value):
        return {name: _without_texts(item) for name, item in value.items() if name not in _TEXTS}
    return value


async def install_agents(agents: AgentRegistry) -> None:
    """Install the agents of conformance checks. An invalid manifest is left out and logged."""
    for manifest in conformance_agents():
        try:
            await agents.register(SHARED, manifest, has_quota=False)
        except WoprError as error:
            log.warning("agent left out", id=manifest.get("agentId"), reason=str(error))
