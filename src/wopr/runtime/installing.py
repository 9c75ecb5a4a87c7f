"""What a host has from its start: the operator's workflows, what is built in, and the fixtures."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from wopr.agents.registry import Agents
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError
from wopr.runtime.builtin_workflows import (
    conformance_agents,
    conformance_fixtures,
    hello,
    runnable_fixtures,
)
from wopr.runtime.definition_files import find_definitions, load_definition
from wopr.runtime.library import Library
from wopr.runtime.settings import Settings
from wopr.store.port import SHARED

log = structlog.get_logger("wopr.host")


async def register_workflows(settings: Settings, library: Library) -> list[str]:
    """Register what the operator gave, then what is built in; answers with the fixtures' ids."""
    given = [
        (str(path), load_definition(path))
        for directory in settings.workflows
        for path in find_definitions(directory)
    ]
    names = {str(document.get("id")) for _, document in given}
    built_in = [("built in", hello())]
    if settings.conformance:
        built_in += [("built in", document) for document in conformance_fixtures()]
    given += [(source, d) for source, d in built_in if str(d.get("id")) not in names]
    names = {str(document.get("id")) for _, document in given}
    kept = {
        str(document["id"]): document
        for source, document in given
        if await _register(library, source, document, names)
    }
    log.info("workflows registered", registered=len(kept), skipped=len(given) - len(kept))
    agents = conformance_agents() if settings.conformance else ()
    return runnable_fixtures(kept, {str(a["agentId"]) for a in agents})


async def _register(
    library: Library, source: str, document: JsonObject, alongside: Collection[str]
) -> bool:
    """Register one definition; one that cannot run here is left out, and the log says why."""
    try:
        await library.register(SHARED, document, alongside=alongside)
    except WoprError as error:
        level = log.debug if source == "built in" else log.warning
        level("workflow left out", source=source, id=document.get("id"), reason=str(error))
        return False
    for warning in await library.warnings(SHARED, document):
        log.warning(
            "workflow has a part without effect",
            source=source,
            id=document["id"],
            path=warning.path,
            message=warning.message,
        )
    return True


async def install_agents(agents: Agents) -> None:
    """Install the agents of conformance checks; one that this host cannot have is left out."""
    for manifest in conformance_agents():
        try:
            await agents.register(SHARED, manifest)
        except WoprError as error:
            log.warning("agent left out", id=manifest.get("agentId"), reason=str(error))
