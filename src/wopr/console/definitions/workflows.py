"""Pages of workflows: list, definition, versions, nodes and recent runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from wopr.console.page import Page, PageRequest
from wopr.console.runs.graph import draw
from wopr.console.static_files import SAFE_HEADERS
from wopr.http.response import Response
from wopr.http.routes.workflows import newest_workflows, workflow_versions
from wopr.protocol.documents import Unset
from wopr.protocol.errors import NotFound
from wopr.protocol.resources.reviews import FeedbackGroup
from wopr.protocol.workflow import WorkflowDefinition
from wopr.runs.definitions.library import CompiledWorkflow
from wopr.store.port import RunFilter, RunRow, WorkflowRow

_RUNS: Final = 10


async def recent_runs(request: PageRequest, workflow_ids: Iterable[str]) -> list[RunRow]:
    """Return the newest runs of these workflows; none if the key may not read runs."""
    if not request.may("runs:read"):
        return []
    found: list[RunRow] = []
    for name in workflow_ids:
        where = RunFilter(workflow_id=name)
        found += (await request.host.store.runs(request.tenant, where, None, _RUNS)).runs
    return sorted(found, key=lambda row: (row.created_at, row.run_id), reverse=True)[:_RUNS]


async def recent_feedback(
    request: PageRequest, *, workflow_id: str | None = None, agent_id: str | None = None
) -> FeedbackGroup | None:
    """Return the feedback of the last 30 days.

    None if feedback is off or the key may not read it.
    """
    if not request.host.settings.feedback or not request.may("runs:read"):
        return None
    summaries = request.host.feedback.summaries
    summary = await summaries.read(
        request.tenant, "workflow", workflow_id=workflow_id, agent_id=agent_id
    )
    return summary.total


PAGE_WORKFLOWS: Final = 100
TEXT: Final = "text/plain; charset=utf-8"


async def list_workflows(request: PageRequest) -> Response:
    """List the workflows that can be started."""
    after = request.query.get("after")
    items, more = await newest_workflows(request.host.store, request.tenant, after, PAGE_WORKFLOWS)
    next_page = f"/workflows?after={quote(items[-1].id)}" if more else ""
    return await request.page("workflows.html", items=items, next_page=next_page)


async def show_workflow(request: PageRequest) -> Response:
    """Show a definition: graph, inputs, nodes, versions and source."""
    row, compiled = await _requested_version(request)
    name = row.workflow_id
    versions = await workflow_versions(request.host.store, request.tenant, name)
    await request.host.agents.load(request.tenant)
    return await request.page(
        "workflow.html",
        row=row,
        definition=compiled.definition,
        drawing=draw(compiled),
        versions=versions,
        is_newest=row.version == versions[0].version,
        query="?" + urlencode({"version": row.version}),
        source=pretty_source(row.body),
        installed=_installed_agents(request, compiled.definition),
        runs=await recent_runs(request, [name]),
        feedback=await recent_feedback(request, workflow_id=name),
    )


async def show_source(request: PageRequest) -> Response:
    """Return the registered definition as text to copy."""
    row, _ = await _requested_version(request)
    return Response(200, pretty_source(row.body).encode(), TEXT, dict(SAFE_HEADERS))


async def show_workflow_node(request: PageRequest) -> Response:
    """Show one node of a definition: type, config, inputs and edges."""
    row, compiled = await _requested_version(request)
    node = compiled.graph.nodes.get(request.http.path["node_id"])
    if node is None:
        raise NotFound("This node does not exist.")
    edges = compiled.definition.edges
    node_type = compiled.types[node.id]
    return await request.page(
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
    """Format a stored document over several lines."""
    return msgspec.json.format(body, indent=2).decode()


async def _requested_version(request: PageRequest) -> tuple[WorkflowRow, CompiledWorkflow]:
    """Return the definition of the path, in the version of the query or the newest version."""
    library, name = request.host.library, request.http.path["workflow_id"][:200]
    row = await library.row(request.tenant, name, request.query.get("version"))
    return row, await library.version(request.tenant, name, row.version)


def _installed_agents(request: PageRequest, definition: WorkflowDefinition) -> set[str]:
    """Return the agents of a workflow whose manifest is installed."""
    named = {node.agent.agent_id for node in definition.nodes if not isinstance(node.agent, Unset)}
    return {each for each in named if request.host.agents.find(request.tenant, each) is not None}


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
