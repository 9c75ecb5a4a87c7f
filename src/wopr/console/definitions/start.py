"""Start a run with a form that is generated from the inputs of its workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import msgspec

from wopr.console.forms import Field, Form, document, field_of, fields_of, members_of, read_field
from wopr.console.page import Page, PageRequest
from wopr.http.response import Response
from wopr.protocol.documents import JsonObject, Unset, list_of, object_of
from wopr.protocol.errors import Refused
from wopr.protocol.runs import CreateRun, RunAccepted
from wopr.protocol.workflow import WorkflowVariable
from wopr.runs.definitions.library import CompiledWorkflow
from wopr.runs.requests import check_request

INPUTS, OPTIONS = "inputs", "configurable"
TAGS: Final = Field(
    name="tags", path="tags", title="Tags", kind="text", help="Separate tags with commas."
)
# Fields for inputs and options that the workflow does not declare.
_MORE: Final = (
    Field(name="more", path=INPUTS, title="Other inputs, as a JSON object", kind="json"),
    Field(name="options", path=OPTIONS, title="Other options, as a JSON object", kind="json"),
)


async def ask_start(request: PageRequest) -> Response:
    """Ask for the inputs of a run."""
    compiled = await _newest_version(request)
    return await _start_page(request, compiled, _fields(compiled), {})


async def start(request: PageRequest) -> Response:
    """Start a run and redirect to its page; show invalid inputs beside their fields."""
    compiled, form = await _newest_version(request), await request.form()
    fields = _fields(compiled)
    try:
        new = await check_request(
            document(_request(compiled, fields, form), CreateRun),
            principal=request.caller,
            library=request.host.library,
            settings=request.host.settings,
            traceparent=request.http.traceparent,
        )
    except Refused as refused:
        filled = [field.with_value(form) for field in fields]
        return await _start_page(request, compiled, filled, _problems(refused))
    made = msgspec.json.decode(await request.host.commands.create(new), type=RunAccepted)
    return request.redirect(f"/runs/{quote(made.run_id, safe='')}")


async def _newest_version(request: PageRequest) -> CompiledWorkflow:
    name = request.http.path["workflow_id"][:200]
    return await request.host.library.newest(request.tenant, name)


def _fields(compiled: CompiledWorkflow) -> list[Field]:
    """Return the fields of the form: variables, options of the schema, tags and other values."""
    definition = compiled.definition
    schema = definition.configurable_schema
    options = {} if isinstance(schema, Unset) or not members_of(schema) else schema
    return [
        *(_variable_field(each) for each in definition.variables),
        *(fields_of(options, OPTIONS, OPTIONS, "") if options else ()),
        TAGS,
        *_MORE,
    ]


def _variable_field(variable: WorkflowVariable) -> Field:
    schema: JsonObject = {"type": variable.type}
    if not isinstance(variable.description, Unset):
        schema["description"] = variable.description
    if not isinstance(variable.default_value, Unset) and not variable.sensitive:
        schema["default"] = variable.default_value
    is_required = variable.required and isinstance(variable.default_value, Unset)
    place = f"{INPUTS}.{variable.name}"
    field = field_of(schema, place, place, variable.name, is_required=is_required)
    return replace(field, kind="secret") if variable.sensitive and field.kind == "text" else field


def _request(compiled: CompiledWorkflow, fields: Sequence[Field], form: Form) -> JsonObject:
    """Return the request of a filled form.

    Raises `Refused` with every field that cannot be read.
    """
    groups: dict[str, JsonObject] = {INPUTS: {}, OPTIONS: {}}
    errors: list[JsonObject] = []
    for field in fields:
        try:
            _add_value(field, form, groups)
        except Refused as refused:
            errors.append({"path": field.name, "message": _problems(refused)[field.path]})
    if errors:
        raise Refused("some fields are not valid", errors=errors)
    tags = [tag.strip() for tag in form.get(TAGS.name).split(",") if tag.strip()]
    return {"workflowId": compiled.workflow_id, "tags": tags, **groups}


def _add_value(field: Field, form: Form, groups: Mapping[str, JsonObject]) -> None:
    """Add the value of a field to its group. The caller reads the tags."""
    value = read_field(field, form)
    if isinstance(value, Unset) or field == TAGS:
        return
    group, _, name = field.path.partition(".")
    if name:
        groups[group][name] = value
    elif isinstance(value, dict):
        groups[group].update(object_of(value))
    else:
        raise Refused(f"{field.path}: must be a JSON object", field=field.path)


def _problems(refused: Refused) -> dict[str, str]:
    """Return the error messages by the path of the invalid value."""
    found = [object_of(each) for each in list_of(refused.details.get("errors"))]
    if found:
        return {str(each["path"]): str(each["message"]) for each in found}
    field = str(refused.details.get("field", ""))
    return {field: refused.message.removeprefix(field).strip(": ")}


async def _start_page(
    request: PageRequest,
    compiled: CompiledWorkflow,
    fields: Sequence[Field],
    problems: Mapping[str, str],
) -> Response:
    texts = {place: request.http.redactor.text(text) for place, text in problems.items()}
    shown = [replace(field, problem=_take_problems(field, texts)) for field in fields]
    return await request.page(
        "start.html",
        400 if problems else 200,
        definition=compiled.definition,
        inputs=[each for each in shown if each.path.startswith(f"{INPUTS}.")],
        options=[each for each in shown if each.path.startswith(f"{OPTIONS}.")],
        tags=next(each for each in shown if each.name == TAGS.name),
        more=[each for each in shown if each.path in (INPUTS, OPTIONS)],
        others=[f"{place}: {text}" if place else text for place, text in texts.items()],
    )


def _take_problems(field: Field, texts: dict[str, str]) -> str:
    """Return the errors of a field and remove them from the list."""
    within = (f"{field.name}.", f"{field.name}[")
    places = [place for place in texts if place == field.name or place.startswith(within)]
    return "; ".join(texts.pop(place) for place in places)


PAGES: Final = (
    Page(
        name="start-run",
        path="/workflows/{workflow_id}/start",
        get=ask_start,
        post=start,
        has_large_form=True,
        scope="runs:create",
        action="run.create",
    ),
)
