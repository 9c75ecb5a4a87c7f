"""Routes of workflows: read, list, register and check definitions."""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.http.operation import PAGING, Operation, Parameter, page_limit
from wopr.http.request import Request, decode_any
from wopr.http.response import Response, ok, redact_response
from wopr.protocol.documents import UNSET, Document, JsonObject, NonEmpty, Unset, to_iso
from wopr.protocol.errors import Refused
from wopr.protocol.json_schema.validation import Fault
from wopr.protocol.runs import Page
from wopr.protocol.workflow import WorkflowDefinition, WorkflowId
from wopr.store.port import SHARED, WorkflowRow, Workflows

# The most characters of a description in a list.
LISTED_CHARACTERS: Final = 500
# A page of a list ends with the definition that reaches this many bytes in total.
PAGE_BYTES: Final = 4 * 1024 * 1024
# Number of definitions per read.
BATCH_SIZE: Final = 20


class _Head(msgspec.Struct):
    """The members of a definition that a list shows."""

    name: str
    description: str = ""


_HEAD: Final = msgspec.json.Decoder(_Head)


class WorkflowItem(Document, frozen=True, kw_only=True):
    """One line of the workflow list."""

    id: str
    name: str
    version: str
    registered_at: str
    is_shared: bool
    description: NonEmpty | Unset = UNSET


class RegisteredWorkflow(WorkflowDefinition, frozen=True, kw_only=True):
    """A registered definition, with warnings about members that this host ignores."""

    warnings: list[Fault] = []


class Verdict(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The result of a check. A definition with only warnings is valid."""

    valid: bool
    errors: list[Fault] = []
    warnings: list[Fault] = []


class NodeTypeItem(Document, frozen=True, kw_only=True):
    """A node type that workflows can use, with the schemas of its config and inputs."""

    type_id: str
    description: str
    config: JsonObject
    inputs: JsonObject


async def get_workflow(request: Request) -> Response:
    """Read a definition exactly as it was registered."""
    row = await request.host.library.row(
        request.tenant, request.path["workflow_id"][:200], request.query.get("version")
    )
    return Response(200, row.body)


async def list_workflows(request: Request) -> Response:
    """List the newest version of every definition the tenant can run."""
    limit = page_limit(request)
    after = _cursor(request.query.get("cursor"))
    items, more = await newest_workflows(request.host.store, request.tenant, after, limit)
    return ok(Page(items=items, next_cursor=items[-1].id if more else UNSET))


async def newest_workflows(
    store: Workflows, tenant: str, after: str | None, limit: int
) -> tuple[list[WorkflowItem], bool]:
    """Return the newest versions of the tenant's definitions by id, and whether there are more.

    The tenant's own definitions replace shared ones with the same id. A page of large definitions
    has fewer than `limit` items: it ends when `PAGE_BYTES` are reached.
    """
    items: list[WorkflowItem] = []
    bytes_left = PAGE_BYTES
    while True:
        rows = await _newest_rows(store, tenant, after, BATCH_SIZE)
        for row, is_shared in rows:
            if len(items) == limit or bytes_left <= 0:
                return items, True
            items.append(_item(row, is_shared=is_shared))
            bytes_left -= len(row.body)
        if len(rows) < BATCH_SIZE:
            return items, False
        after = items[-1].id


async def _newest_rows(
    store: Workflows, tenant: str, after: str | None, limit: int
) -> list[tuple[WorkflowRow, bool]]:
    """Return the next definitions by id, each with whether it is shared."""
    own = await store.workflows(tenant, after, limit)
    names = {row.workflow_id for row in own}
    shared = await store.workflows(SHARED, after, limit)
    rows = [(row, False) for row in own]
    rows += [(row, True) for row in shared if row.workflow_id not in names]
    return sorted(rows, key=lambda each: each[0].workflow_id)[:limit]


def _cursor(raw: str | None) -> str | None:
    """Return the last id of the previous page."""
    try:
        return msgspec.convert(raw, WorkflowId | None)
    except msgspec.ValidationError:
        raise Refused(
            "cursor is not valid: use the nextCursor of a previous response", field="cursor"
        ) from None


async def list_versions(request: Request) -> Response:
    """List all versions of a definition, newest first."""
    name = request.path["workflow_id"][:200]
    await request.host.library.row(request.tenant, name)
    return ok(Page(items=await workflow_versions(request.host.store, request.tenant, name)))


async def workflow_versions(store: Workflows, tenant: str, name: str) -> list[WorkflowItem]:
    """Return all versions of a definition, newest first: the tenant's own, else the shared ones."""
    for owner in (tenant, SHARED):
        items: list[WorkflowItem] = []
        while rows := await store.workflow_versions(owner, name, BATCH_SIZE, len(items)):
            items += [_item(row, is_shared=owner == SHARED) for row in rows]
            if len(rows) < BATCH_SIZE:
                break
        if items:
            return items
    return []


def _item(row: WorkflowRow, *, is_shared: bool) -> WorkflowItem:
    definition = _HEAD.decode(row.body)
    return WorkflowItem(
        id=row.workflow_id,
        name=definition.name,
        version=row.version,
        registered_at=to_iso(row.registered_at),
        is_shared=is_shared,
        description=_truncate(definition.description) or UNSET,
    )


def _truncate(description: str) -> str:
    """Truncate a description for a list."""
    is_long = len(description) > LISTED_CHARACTERS
    return description[: LISTED_CHARACTERS - 1] + "…" if is_long else description


async def register_workflow(request: Request) -> Response:
    """Register a definition, or a new version of one."""
    document = decode_any(await request.raw_document())
    row, is_new = await request.host.library.register(
        request.tenant,
        document,
        may_author_conformance=request.caller.may("conformance:author"),
        alongside=_alongside(request),
    )
    status = 201 if is_new else 200
    warnings = await request.host.library.warnings(request.tenant, document)
    if not warnings:
        return Response(status, row.body)
    response = ok({**document, "warnings": warnings}, status)
    return await redact_response(response, request.redactor)


async def validate_workflow(request: Request) -> Response:
    """Check a definition without registering it."""
    document = decode_any(await request.raw_document())
    try:
        await request.host.library.check(
            request.tenant,
            document,
            may_author_conformance=request.caller.may("conformance:author"),
            alongside=_alongside(request),
        )
    except Refused as refused:
        errors = refused.details.get("errors")
        found = msgspec.convert(errors, list[Fault]) if errors else []
        fallback = Fault(path=str(refused.details.get("nodeId", "")), message=refused.message)
        report = ok(Verdict(valid=False, errors=found or [fallback]))
        return await redact_response(report, request.redactor)
    warnings = await request.host.library.warnings(request.tenant, document)
    report = ok(Verdict(valid=True, warnings=warnings))
    return await redact_response(report, request.redactor)


def _alongside(request: Request) -> list[str]:
    return request.query.get("alongside", "").split(",")


async def list_node_types(request: Request) -> Response:
    """List the node types of this host."""
    items = [msgspec.convert(t.schema(), NodeTypeItem) for t in request.host.registry]
    return ok(Page(items=sorted(items, key=lambda item: item.type_id)))


_ERRORS = (400, 401, 403, 413, 415)
_ALONGSIDE = Parameter(
    name="alongside",
    description=(
        "Ids of workflows that will also be registered, separated by commas. The definition may "
        "start them before they are registered."
    ),
    schema={"type": "string"},
)

OPERATIONS = (
    Operation(
        name="getWorkflow",
        method="GET",
        path="/v1/workflows/{workflow_id}",
        handler=get_workflow,
        summary="Read a definition",
        tag="workflows",
        scope="manifest:read",
        response=WorkflowDefinition,
        errors=(401, 403, 404),
        parameters=(
            Parameter(
                name="version", description="Default: the newest.", schema={"type": "string"}
            ),
        ),
    ),
    Operation(
        name="listWorkflows",
        method="GET",
        path="/v1/workflows",
        handler=list_workflows,
        summary="List definitions",
        tag="workflows",
        scope="manifest:read",
        response=Page,
        errors=(400, 401, 403),
        parameters=PAGING,
        is_extension=True,
    ),
    Operation(
        name="registerWorkflow",
        method="POST",
        path="/v1/workflows",
        handler=register_workflow,
        summary="Register a definition or a new version",
        tag="workflows",
        scope="workflows:write",
        body=WorkflowDefinition,
        success=201,
        response=RegisteredWorkflow,
        other_statuses=(200,),
        errors=(*_ERRORS, 409),
        parameters=(_ALONGSIDE,),
        is_extension=True,
    ),
    Operation(
        name="validateWorkflow",
        method="POST",
        path="/v1/workflows:validate",
        handler=validate_workflow,
        summary="Check a definition without registering it",
        tag="workflows",
        scope="workflows:write",
        body=WorkflowDefinition,
        response=Verdict,
        errors=(*_ERRORS, 409),
        parameters=(_ALONGSIDE,),
        is_extension=True,
    ),
    Operation(
        name="listWorkflowVersions",
        method="GET",
        path="/v1/workflows/{workflow_id}/versions",
        handler=list_versions,
        summary="List the versions of a definition",
        tag="workflows",
        scope="manifest:read",
        response=Page,
        errors=(401, 403, 404),
        is_extension=True,
    ),
    Operation(
        name="listNodeTypes",
        method="GET",
        path="/v1/node-types",
        handler=list_node_types,
        summary="List the node types of this host",
        tag="workflows",
        scope="manifest:read",
        response=Page,
        errors=(401, 403),
        is_extension=True,
    ),
)
