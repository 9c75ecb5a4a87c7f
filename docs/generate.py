"""Write `docs/reference` from the code: `make docs`.

Each page is a function that yields its lines. Only the descriptions in `docs.meanings` are written by
hand, so the reference matches the code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from inspect import getdoc
from pathlib import Path
from typing import Final

import msgspec
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

from docs.meanings import RESPONSE_ERRORS, RUN_ERRORS, SETTINGS
from docs.python_api import python_api
from docs.schema_text import Schema, cell, fields, table, type_text
from wopr.cli.errors import MEANINGS
from wopr.cli.main import app
from wopr.engine.limits import HostLimits
from wopr.http.app import OPERATIONS
from wopr.http.openapi import openapi_document
from wopr.http.operation import Operation
from wopr.nodes.builtin import builtin_types
from wopr.nodes.registry import NodeType
from wopr.process.settings import Settings
from wopr.protocol import errors
from wopr.protocol.emitters import required_capability
from wopr.protocol.events.payloads import PAYLOADS
from wopr.protocol.json_schema.export import export
from wopr.protocol.streams import is_update

DOCS: Final = Path(__file__).parent
SOURCE: Final = DOCS.parent / "src" / "wopr"
_NOTE: Final = "<!-- Generated from the code by `make docs`; do not edit. -->"
_FIELDS: Final = ("Field", "Type", "Required")


def cli() -> Iterator[str]:
    """Describe every command with its arguments and options."""
    yield "# Commands"
    yield ""
    yield from _command(get_command(app), "wopr")
    yield "## Exit codes"
    yield ""
    yield from table(("Code", "Meaning"), [(int(code), text) for code, text in MEANINGS.items()])


def _command(command: object, path: str) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from _command(each, f"{path} {name}")
        return
    parameters: list[object] = getattr(command, "params", [])
    arguments = [each for each in parameters if isinstance(each, TyperArgument)]
    options = [each for each in parameters if isinstance(each, TyperOption)]
    words = " ".join(each.metavar or (each.name or "").upper() for each in arguments)
    yield f"## `{path}{' ' if words else ''}{words}`"
    yield ""
    yield str(getattr(command, "help", "")).strip()
    yield ""
    rows: list[tuple[object, ...]] = [
        (f"`{each.metavar or (each.name or '').upper()}`", each.help or "", "")
        for each in arguments
    ]
    rows += [
        (_option(each), each.help or "", f"`{each.envvar}`" if each.envvar else "")
        for each in options
        if not each.hidden
    ]
    yield from table(("Option", "Meaning", "Variable"), rows)


def _option(option: TyperOption) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default: object = option.default
    return names if default is None or option.is_flag else f"{names} (default `{default}`)"


def http() -> Iterator[str]:
    """Describe every operation of the API."""
    described = openapi_document(OPERATIONS)
    shapes: dict[str, Schema] = described["components"]["schemas"]
    yield "# HTTP"
    yield ""
    yield "Authenticate with `Authorization: Bearer <key>`. A failed request returns the error envelope:"
    yield "`error`, `message` and, if useful, `details`. The same description as OpenAPI 3.1 is at"
    yield "`/v1/openapi.json`. Operations marked *extension* are not part of the protocol."
    yield ""
    rows: list[tuple[object, ...]] = [
        (f"`{each.method} {each.path}`", each.summary, _scope(each)) for each in OPERATIONS
    ]
    yield from table(("Operation", "", "Scope"), rows)
    for operation in OPERATIONS:
        yield from _operation(operation, shapes)


def _scope(operation: Operation) -> str:
    return f"`{operation.scope}`" if operation.scope else "open to all"


def _operation(operation: Operation, shapes: dict[str, Schema]) -> Iterator[str]:
    yield f"## {operation.name}"
    yield ""
    mark = ", *extension*" if operation.is_extension else ""
    yield f"`{operation.method} {operation.path}`, {_scope(operation)}{mark}"
    yield ""
    yield getdoc(operation.handler) or operation.summary
    yield ""
    yield from table(
        ("Parameter", "In", "Type", "Meaning"),
        [
            (f"`{each.name}`", each.where, type_text(each.schema), each.description)
            for each in operation.parameters
        ],
    )
    if operation.body is not None:
        must = "optional" if operation.body_is_optional else "required"
        yield f"Body, {must}: {operation.body.__name__}"
        yield ""
        yield from table(_FIELDS, fields({"$ref": operation.body.__name__}, shapes))
    statuses = [str(operation.success), *map(str, operation.other_statuses)]
    name = operation.response.__name__ if operation.response else f"`{operation.content_type}`"
    failures = f"; errors {', '.join(map(str, operation.errors))}" if operation.errors else ""
    yield f"Returns {' or '.join(statuses)} with {name}{failures}."
    yield ""


def events() -> Iterator[str]:
    """Describe every event type."""
    made, shapes = msgspec.json.schema_components(PAYLOADS.values(), ref_template="#/$defs/{name}")
    schemas = dict(zip(PAYLOADS, made, strict=True))
    yield "# Events"
    yield ""
    yield "Every event has `eventId`, `runId`, `sequence`, `type`, `timestamp` and `payload`, and"
    yield "where they apply `nodeId` and `causationId`. This page describes the payloads. A host appends"
    yield "an event that needs a capability only if its discovery document advertises the capability."
    yield ""
    for event_type, payload in PAYLOADS.items():
        yield f"## `{event_type}`"
        yield ""
        yield (getdoc(payload) or "").split("\n\n")[0].replace("\n", " ")
        needed = required_capability(event_type)
        facts = ["in the `updates` stream" if is_update(event_type) else "in the `debug` stream"]
        facts += [f"needs `{needed}`"] if needed else []
        yield ""
        yield f"*{', '.join(facts)}*"
        yield ""
        yield from table(_FIELDS, fields(schemas[event_type], shapes))


def error_codes() -> Iterator[str]:
    """Describe every error code: those of responses with their status, and those of failed runs."""
    used = _codes_in_use()
    yield "# Error codes"
    yield ""
    yield "A code marked *reserved* is part of the protocol but is not used in this version."
    yield ""
    yield "## In responses"
    yield ""
    rows: list[tuple[object, ...]] = [
        (status, f"`{code}`{_reserved(code, used)}", _meaning(RESPONSE_ERRORS, code))
        for code, status in errors.CATALOGUE.items()
    ]
    yield from table(("Status", "Code", "Meaning"), rows)
    yield "## In `error.code` of a failed run or node"
    yield ""
    ends: list[tuple[object, ...]] = [
        (f"`{code}`{_reserved(code, used)}", _meaning(RUN_ERRORS, code))
        for code in sorted(errors.RUN_CODES)
    ]
    yield from table(("Code", "Meaning"), ends)


def _reserved(code: str, used: frozenset[str]) -> str:
    return "" if code in used else " *reserved*"


def _meaning(meanings: dict[str, str], name: str) -> str:
    if name not in meanings:
        raise LookupError(f"docs/meanings.py has no description of {name}: add one")
    return meanings[name]


def _codes_in_use() -> frozenset[str]:
    """Return the codes that the source uses by name or by raising their class."""
    defaults = {
        name: kind.default_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.WoprError)
    }
    used: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if path == SOURCE / "protocol" / "errors.py":
            continue
        for each in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                used.add(each.value)
            elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name):
                used.add(defaults.get(each.func.id, ""))
    return frozenset(used)


def settings() -> Iterator[str]:
    """Describe every setting, its variable and its default."""
    yield "# Settings"
    yield ""
    yield "Each setting is a `WOPR_*` variable. If `wopr serve` has an option for it, the option takes"
    yield "precedence. With an invalid value the host does not start, and the message names the setting."
    yield ""
    rows = [
        (f"`WOPR_{each.name.upper()}`", _default(each.default), _meaning(SETTINGS, each.name))
        for each in dataclass_fields(Settings)
        if each.name != "limits"
    ]
    rows += [
        (f"`WOPR_{name.upper()}`", _default(getattr(HostLimits(), name)), _meaning(SETTINGS, name))
        for name in HostLimits.__struct_fields__
    ]
    yield from table(("Variable", "Default", "Meaning"), [tuple(row) for row in rows])
    yield "Traces use the variables of OpenTelemetry, such as `OTEL_EXPORTER_OTLP_ENDPOINT`. The command"
    yield "line also reads `WOPR_URL` and `WOPR_API_KEY`."


def _default(value: object) -> str:
    return "" if value in (MISSING, "", ()) else f"`{value}`"


def node_types() -> Iterator[str]:
    """Describe every built-in node type with its config and inputs."""
    yield "# Node types"
    yield ""
    yield "Installed packages can add node types: `GET /v1/node-types` lists all types of a host."
    yield ""
    for each in sorted(builtin_types(with_conformance=True), key=lambda found: found.type_id):
        yield from _node_type(each)


def _node_type(node_type: NodeType) -> Iterator[str]:
    facts = ["can wait" if node_type.is_async else "executed within the advance"]
    facts += ["can start a loop"] if node_type.reentrant else []
    facts += [f"needs `{need}`" for need in node_type.requires]
    facts += ["only with `--conformance`"] if node_type.conformance_only else []
    yield f"## `{node_type.type_id}`"
    yield ""
    yield node_type.description
    yield ""
    yield f"*{', '.join(facts)}*"
    yield ""
    described = node_type.schema()
    for part in ("config", "inputs"):
        schema: Schema = described[part]
        rows = fields(schema, schema.get("$defs", {}))
        if rows:
            yield from table((f"`{part}`", *_FIELDS[1:]), rows)


def schemas() -> Iterator[str]:
    """Describe every published schema and the members of its document."""
    yield "# Schemas"
    yield ""
    yield "JSON Schemas (draft 2020-12) of requests, responses and events, generated from the types that"
    yield "decode them. A host serves each at its path. See [events](events.md) for the payloads."
    yield ""
    for name, schema in export().items():
        yield f"## `/v1/schemas/{name}.json`"
        yield ""
        shape = schema["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        yield cell(shape.get("description", "One entry of `$defs` per event type.")).split(". ")[0]
        yield ""
        yield from table(_FIELDS, fields(shape, schema["$defs"]))


PAGES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "cli": cli,
    "http": http,
    "events": events,
    "errors": error_codes,
    "settings": settings,
    "node-types": node_types,
    "schemas": schemas,
    "python-api": python_api,
}


def page(name: str) -> str:
    """Return the text of one page."""
    return "\n".join((_NOTE, "", *PAGES[name]())).rstrip() + "\n"


def main() -> None:
    """Write every page."""
    reference = DOCS / "reference"
    reference.mkdir(exist_ok=True)
    for name in PAGES:
        (reference / f"{name}.md").write_text(page(name))


if __name__ == "__main__":
    main()
