"""Workflows: the list, one definition as graph and source in any of its versions, and its nodes."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from wopr.console.graph_view import draw
from wopr.console.headers import SAFE_HEADERS
from wopr.console.page import Page
from wopr.console.recent import recent_feedback, recent_runs
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.workflows import newest_workflows, workflow_versions
from wopr.protocol.documents import Unset
from wopr.protocol.errors import NotFound
from wopr.protocol.workflow import WorkflowDefinition
from wopr.runtime.library import Compiled
from wopr.store.port import WorkflowRow

PAGE_WORKFLOWS: Final = 100
TEXT: Final = "text/plain; charset=utf-8"


async def list_workflows(visit: Visit) -> Answer:
    """List what can be run."""
    after = visit.query.get("after")
    items, more = await newest_workflows(visit.host.store, visit.tenant, after, PAGE_WORKFLOWS)
    next_page = f"/workflows?after={quote(items[-1].id)}" if more else ""
    return await visit.page("workflows.html", items=items, next_page=next_page)


async def show_workflow(visit: Visit) -> Answer:
    """Show a definition: as a graph, what it takes, its nodes, its versions and its source."""
    row, compiled = await _version(visit)
    name = row.workflow_id
    versions = await workflow_versions(visit.host.store, visit.tenant, name)
    await visit.host.agents.load(visit.tenant)
    return await visit.page(
        "workflow.html",
        row=row,
        definition=compiled.definition,
        drawing=draw(compiled),
        versions=versions,
        is_newest=row.version == versions[0].version,
        query="?" + urlencode({"version": row.version}),
        source=pretty_source(row.body),
        installed=_installed(visit, compiled.definition),
        runs=await recent_runs(visit, [name]),
        feedback=await recent_feedback(visit, workflow_id=name),
    )


async def show_source(visit: Visit) -> Answer:
    """The definition as it was registered, as text to copy."""
    row, _ = await _version(visit)
    return Answer(200, pretty_source(row.body).encode(), TEXT, dict(SAFE_HEADERS))


async def show_workflow_node(visit: Visit) -> Answer:
    """Show one node of a definition: its type, its config, what it takes and where it leads."""
    row, compiled = await _version(visit)
    node = compiled.graph.nodes.get(visit.exchange.path["node_id"])
    if node is None:
        raise NotFound("there is no such node")
    edges = compiled.definition.edges
    node_type = compiled.types[node.id]
    return await visit.page(
        "workflow_node.html",
        row=row,
        node=node,
        about="" if node_type is None else node_type.schema()["description"],
        inputs=msgspec.to_builtins(node.inputs),
        settings=msgspec.to_builtins(node.settings),
        before=[edge for edge in edges if edge.target_node_id == node.id],
        after=[edge for edge in edges if edge.source_node_id == node.id],
        query="?" + urlencode({"version": row.version}),
    )


def pretty_source(body: bytes) -> str:
    """A stored document over several lines."""
    return msgspec.json.format(body, indent=2).decode()


async def _version(visit: Visit) -> tuple[WorkflowRow, Compiled]:
    """The definition that the path names, in the version that the query names or the newest."""
    library, name = visit.host.library, visit.exchange.path["workflow_id"][:200]
    row = await library.row(visit.tenant, name, visit.query.get("version"))
    return row, await library.version(visit.tenant, name, row.version)


def _installed(visit: Visit, definition: WorkflowDefinition) -> set[str]:
    """The agents of a workflow that have a manifest here."""
    named = {node.agent.agent_id for node in definition.nodes if not isinstance(node.agent, Unset)}
    return {each for each in named if visit.host.agents.find(visit.tenant, each) is not None}


PAGES: Final = (
    Page(name="workflows", path="/workflows", get=list_workflows, scope="manifest:read"),
    Page(
        name="workflow",
        path="/workflows/{workflow_id}",
        get=show_workflow,
        scope="manifest:read",
    ),
    Page(
        name="workflow-source",
        path="/workflows/{workflow_id}/source",
        get=show_source,
        scope="manifest:read",
    ),
    Page(
        name="workflow-node",
        path="/workflows/{workflow_id}/nodes/{node_id}",
        get=show_workflow_node,
        scope="manifest:read",
    ),
)
