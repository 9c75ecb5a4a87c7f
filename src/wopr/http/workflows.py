"""Workflows: read, list, register and check definitions."""

from __future__ import annotations

from typing import Final

import msgspec

from wopr.http.answers import Answer, ok, redacted
from wopr.http.exchange import Exchange, decode_any
from wopr.http.operation import Operation, Parameter
from wopr.http.paging import PAGE_DEFAULT, PAGE_MOST, PAGING
from wopr.protocol.checking import Fault
from wopr.protocol.documents import UNSET, Document, JsonObject, NonEmpty, Unset
from wopr.protocol.errors import Refused
from wopr.protocol.runs import Page
from wopr.protocol.times import to_iso
from wopr.protocol.workflow import WorkflowDefinition, WorkflowId
from wopr.store.port import SHARED, WorkflowRow, Workflows

# The most characters of a description in a list.
LISTED_CHARACTERS: Final = 500
# A page of a list ends with the definition that brings those read to so many bytes.
PAGE_BYTES: Final = 4 * 1024 * 1024
# Definitions that are read at once.
_BATCH: Final = 20


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
    """A registered definition, with what this host ignores in it."""

    warnings: list[Fault] = []


class Verdict(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The result of a check. A definition with warnings alone is valid."""

    valid: bool
    errors: list[Fault] = []
    warnings: list[Fault] = []


class NodeTypeItem(Document, frozen=True, kw_only=True):
    """A node type that workflows can use, with the schemas of its config and inputs."""

    type_id: str
    description: str
    config: JsonObject
    inputs: JsonObject


async def get_workflow(exchange: Exchange) -> Answer:
    """Read a definition exactly as it was registered."""
    row = await exchange.host.library.row(
        exchange.tenant, exchange.path["workflow_id"][:200], exchange.query.get("version")
    )
    return Answer(200, row.body)


async def list_workflows(exchange: Exchange) -> Answer:
    """List the newest version of every definition the tenant can run."""
    limit = exchange.whole_number("limit", PAGE_DEFAULT, least=1, most=PAGE_MOST)
    after = _cursor(exchange.query.get("cursor"))
    items, more = await newest_workflows(exchange.host.store, exchange.tenant, after, limit)
    return ok(Page(items=items, next_cursor=items[-1].id if more else UNSET))


async def newest_workflows(
    store: Workflows, tenant: str, after: str | None, limit: int
) -> tuple[list[WorkflowItem], bool]:
    """The newest version of the definitions the tenant can run, by id, and whether there are more.

    Its own definitions come before shared ones of the same id. A page of large definitions has
    fewer than `limit`: it ends with the one that brings those read to `PAGE_BYTES`.
    """
    items: list[WorkflowItem] = []
    room = PAGE_BYTES
    while True:
        rows = await _newest_rows(store, tenant, after, _BATCH)
        for row, is_shared in rows:
            if len(items) == limit or room <= 0:
                return items, True
            items.append(_item(row, is_shared=is_shared))
            room -= len(row.body)
        if len(rows) < _BATCH:
            return items, False
        after = items[-1].id


async def _newest_rows(
    store: Workflows, tenant: str, after: str | None, limit: int
) -> list[tuple[WorkflowRow, bool]]:
    """The next definitions by id, each with whether it is shared."""
    own = await store.workflows(tenant, after, limit)
    names = {row.workflow_id for row in own}
    shared = await store.workflows(SHARED, after, limit)
    rows = [(row, False) for row in own]
    rows += [(row, True) for row in shared if row.workflow_id not in names]
    return sorted(rows, key=lambda each: each[0].workflow_id)[:limit]


def _cursor(raw: str | None) -> str | None:
    """The id that the last page ended with."""
    try:
        return msgspec.convert(raw, WorkflowId | None)
    except msgspec.ValidationError:
        raise Refused("cursor is not one that this host gave out", field="cursor") from None


async def list_versions(exchange: Exchange) -> Answer:
    """List all versions of a definition, newest first."""
    name = exchange.path["workflow_id"][:200]
    await exchange.host.library.row(exchange.tenant, name)
    return ok(Page(items=await workflow_versions(exchange.host.store, exchange.tenant, name)))


async def workflow_versions(store: Workflows, tenant: str, name: str) -> list[WorkflowItem]:
    """All versions of a definition, newest first: the tenant's own, or else the shared ones.

    A few are read at a time, since each is a whole definition.
    """
    for owner in (tenant, SHARED):
        items: list[WorkflowItem] = []
        while rows := await store.workflow_versions(owner, name, _BATCH, len(items)):
            items += [_item(row, is_shared=owner == SHARED) for row in rows]
            if len(rows) < _BATCH:
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
        description=_cut(definition.description) or UNSET,
    )


def _cut(description: str) -> str:
    """A description in a list; the definition has it whole."""
    is_long = len(description) > LISTED_CHARACTERS
    return description[: LISTED_CHARACTERS - 1] + "…" if is_long else description


async def register_workflow(exchange: Exchange) -> Answer:
    """Register a definition, or a new version of one."""
    document = decode_any(await exchange.raw_document())
    row, is_new = await exchange.host.library.register(
        exchange.tenant,
        document,
        may_author_conformance=exchange.caller.may("conformance:author"),
        alongside=_alongside(exchange),
    )
    status = 201 if is_new else 200
    warnings = await exchange.host.library.warnings(exchange.tenant, document)
    if not warnings:
        return Answer(status, row.body)
    answer = ok({**document, "warnings": warnings}, status)
    return await redacted(answer, exchange.redactor)


async def validate_workflow(exchange: Exchange) -> Answer:
    """Check a definition and register nothing."""
    document = decode_any(await exchange.raw_document())
    try:
        await exchange.host.library.check(
            exchange.tenant,
            document,
            may_author_conformance=exchange.caller.may("conformance:author"),
            alongside=_alongside(exchange),
        )
    except Refused as refused:
        errors = refused.details.get("errors")
        found = msgspec.convert(errors, list[Fault]) if errors else []
        fallback = Fault(path=str(refused.details.get("nodeId", "")), message=refused.message)
        verdict = ok(Verdict(valid=False, errors=found or [fallback]))
        return await redacted(verdict, exchange.redactor)
    warnings = await exchange.host.library.warnings(exchange.tenant, document)
    verdict = ok(Verdict(valid=True, warnings=warnings))
    return await redacted(verdict, exchange.redactor)


def _alongside(exchange: Exchange) -> list[str]:
    return exchange.query.get("alongside", "").split(",")


async def list_node_types(exchange: Exchange) -> Answer:
    """List the node types of this host."""
    items = [msgspec.convert(t.schema(), NodeTypeItem) for t in exchange.host.registry]
    return ok(Page(items=sorted(items, key=lambda item: item.type_id)))


_ERRORS = (400, 401, 403, 413, 415)
_ALONGSIDE = Parameter(
    name="alongside",
    description=(
        "Ids of workflows that will be registered too, separated by commas. The definition may "
        "start them, although they are not known yet."
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
        answer=WorkflowDefinition,
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
        answer=Page,
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
        answer=RegisteredWorkflow,
        other_answers=(200,),
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
        answer=Verdict,
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
        answer=Page,
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
        answer=Page,
        errors=(401, 403),
        is_extension=True,
    ),
)
