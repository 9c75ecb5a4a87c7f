"""Start a run by a form made from what its workflow takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import msgspec

from wopr.console.form import Form, document
from wopr.console.json_values import list_of, object_of
from wopr.console.page import Page
from wopr.console.schema_fields import Field, field_of, fields_of, members_of, read_field
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.protocol.documents import JsonObject, Unset
from wopr.protocol.errors import Refused
from wopr.protocol.runs import CreateRun, RunAccepted
from wopr.protocol.workflow import WorkflowVariable
from wopr.runtime.library import Compiled
from wopr.runtime.requests import check_request

INPUTS, OPTIONS = "inputs", "configurable"
TAGS: Final = Field(
    name="tags", path="tags", title="Tags", kind="text", help="What it is for; comma between."
)
# What a workflow takes beyond what it declares.
_MORE: Final = (
    Field(name="more", path=INPUTS, title="Other inputs, as a JSON object", kind="json"),
    Field(name="options", path=OPTIONS, title="Other options, as a JSON object", kind="json"),
)


async def ask_start(visit: Visit) -> Answer:
    """Ask for the inputs of a run."""
    compiled = await _compiled(visit)
    return await _start_page(visit, compiled, _fields(compiled), {})


async def start(visit: Visit) -> Answer:
    """Start a run, and go to its page; what is wrong with the inputs is said beside them."""
    compiled, form = await _compiled(visit), await visit.form()
    fields = _fields(compiled)
    try:
        new = await check_request(
            document(_request(compiled, fields, form), CreateRun),
            principal=visit.caller,
            library=visit.host.library,
            settings=visit.host.settings,
            traceparent=visit.exchange.traceparent,
        )
    except Refused as refused:
        filled = [field.filled(form) for field in fields]
        return await _start_page(visit, compiled, filled, _problems(refused))
    made = msgspec.json.decode(await visit.host.commands.create(new), type=RunAccepted)
    return visit.redirect(f"/runs/{quote(made.run_id, safe='')}")


async def _compiled(visit: Visit) -> Compiled:
    name = visit.exchange.path["workflow_id"][:200]
    return await visit.host.library.newest(visit.tenant, name)


def _fields(compiled: Compiled) -> list[Field]:
    """What a workflow asks for: its variables, the options that its schema names, and the rest."""
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


def _request(compiled: Compiled, fields: Sequence[Field], form: Form) -> JsonObject:
    """The request that the form stands for. Raises `Refused` with all that cannot be read."""
    groups: dict[str, JsonObject] = {INPUTS: {}, OPTIONS: {}}
    faults: list[JsonObject] = []
    for field in fields:
        try:
            _take(field, form, groups)
        except Refused as refused:
            faults.append({"path": field.name, "message": _problems(refused)[field.path]})
    if faults:
        raise Refused("some of it cannot be read", errors=faults)
    tags = [tag.strip() for tag in form.get(TAGS.name).split(",") if tag.strip()]
    return {"workflowId": compiled.workflow_id, "tags": tags, **groups}


def _take(field: Field, form: Form, groups: Mapping[str, JsonObject]) -> None:
    """Put the value of a field where it belongs; tags are read as a whole."""
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
    """What is wrong, by the place that it is wrong at."""
    found = [object_of(each) for each in list_of(refused.details.get("errors"))]
    if found:
        return {str(each["path"]): str(each["message"]) for each in found}
    field = str(refused.details.get("field", ""))
    return {field: refused.message.removeprefix(field).strip(": ")}


async def _start_page(
    visit: Visit, compiled: Compiled, fields: Sequence[Field], problems: Mapping[str, str]
) -> Answer:
    said = {place: visit.exchange.redactor.text(text) for place, text in problems.items()}
    shown = [replace(field, problem=_taken(field, said)) for field in fields]
    return await visit.page(
        "start.html",
        400 if problems else 200,
        definition=compiled.definition,
        inputs=[each for each in shown if each.path.startswith(f"{INPUTS}.")],
        options=[each for each in shown if each.path.startswith(f"{OPTIONS}.")],
        tags=next(each for each in shown if each.name == TAGS.name),
        more=[each for each in shown if each.path in (INPUTS, OPTIONS)],
        others=[f"{place}: {text}" if place else text for place, text in said.items()],
    )


def _taken(field: Field, said: dict[str, str]) -> str:
    """What is said of a field or of a part of it; it is then said nowhere else."""
    within = (f"{field.name}.", f"{field.name}[")
    places = [place for place in said if place == field.name or place.startswith(within)]
    return "; ".join(said.pop(place) for place in places)


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
