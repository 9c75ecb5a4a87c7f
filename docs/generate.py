"""Write `docs/reference` from the code: `make docs`.

Every page is a function that returns its lines. Nothing in them is written by hand but the words
of `docs.meanings`, so the reference cannot disagree with what is served.
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

from docs.meanings import ANSWERS, RUNS, SETTINGS
from docs.schema_text import Schema, cell, fields, table, type_text
from wopr.cli.exit_codes import MEANINGS
from wopr.cli.main import app
from wopr.engine.limits import HostLimits
from wopr.http.app import OPERATIONS
from wopr.http.openapi import openapi_document
from wopr.http.operation import Operation
from wopr.nodes.builtin import builtin_types
from wopr.nodes.registry import NodeType
from wopr.protocol import errors
from wopr.protocol.emitters import required_capability
from wopr.protocol.payloads import PAYLOADS
from wopr.protocol.schemas import export
from wopr.protocol.streams import is_update
from wopr.runtime.settings import Settings

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
    """Describe every operation, from the table that serves them."""
    described = openapi_document(OPERATIONS)
    shapes: dict[str, Schema] = described["components"]["schemas"]
    yield "# HTTP"
    yield ""
    yield "Authenticate with `Authorization: Bearer <key>`. A failure answers with the error"
    yield "envelope: `error`, `message` and, where they help, `details`. The same description as"
    yield "OpenAPI 3.1 is at `/v1/openapi.json`. Operations marked *extension* are this host's own."
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
    answers = [str(operation.success), *map(str, operation.other_answers)]
    name = operation.answer.__name__ if operation.answer else f"`{operation.content_type}`"
    failures = f"; errors {', '.join(map(str, operation.errors))}" if operation.errors else ""
    yield f"Answers {' or '.join(answers)} with {name}{failures}."
    yield ""


def events() -> Iterator[str]:
    """Describe every event type that a log can hold."""
    made, shapes = msgspec.json.schema_components(PAYLOADS.values(), ref_template="#/$defs/{name}")
    schemas = dict(zip(PAYLOADS, made, strict=True))
    yield "# Events"
    yield ""
    yield "Every event has `eventId`, `runId`, `sequence`, `type`, `timestamp` and `payload`, and"
    yield "where they apply `nodeId` and `causationId`. This page is about the payloads. An event"
    yield "that names a capability is appended only by a host whose discovery document has it."
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
    """Describe every code: those of answers with their status, and those of failed runs."""
    used = _codes_in_use()
    yield "# Error codes"
    yield ""
    yield "A code marked *reserved* belongs to the protocol, and nothing in this version raises it."
    yield ""
    yield "## In answers"
    yield ""
    rows: list[tuple[object, ...]] = [
        (status, f"`{code}`{_reserved(code, used)}", _words(ANSWERS, code))
        for code, status in errors.CATALOGUE.items()
    ]
    yield from table(("Status", "Code", "Meaning"), rows)
    yield "## In `error.code` of a failed run or node"
    yield ""
    ends: list[tuple[object, ...]] = [
        (f"`{code}`{_reserved(code, used)}", _words(RUNS, code))
        for code in sorted(errors.RUN_CODES)
    ]
    yield from table(("Code", "Meaning"), ends)


def _reserved(code: str, used: frozenset[str]) -> str:
    return "" if code in used else " *reserved*"


def _words(meanings: dict[str, str], name: str) -> str:
    if name not in meanings:
        raise LookupError(f"docs/meanings.py has no words for {name}")
    return meanings[name]


def _codes_in_use() -> frozenset[str]:
    """Find codes named anywhere outside the catalogue, and those of errors raised by class."""
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
    yield "Each is a `WOPR_*` variable; those that `wopr serve` has an option for can be given as"
    yield "one, which wins. A value that cannot work is refused at start, by name."
    yield ""
    rows = [
        (f"`WOPR_{each.name.upper()}`", _default(each.default), _words(SETTINGS, each.name))
        for each in dataclass_fields(Settings)
        if each.name != "limits"
    ]
    rows += [
        (f"`WOPR_{name.upper()}`", _default(getattr(HostLimits(), name)), _words(SETTINGS, name))
        for name in HostLimits.__struct_fields__
    ]
    yield from table(("Variable", "Default", "Meaning"), [tuple(row) for row in rows])
    yield "Traces follow OpenTelemetry's own variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`. The"
    yield "command line also reads `WOPR_URL` and `WOPR_API_KEY`."


def _default(value: object) -> str:
    return "" if value in (MISSING, "", ()) else f"`{value}`"


def node_types() -> Iterator[str]:
    """Describe every built-in node type with its config and inputs."""
    yield "# Node types"
    yield ""
    yield "A host that has other packages installed may have more: `GET /v1/node-types` lists them."
    yield ""
    for each in sorted(builtin_types(with_conformance=True), key=lambda found: found.type_id):
        yield from _node_type(each)


def _node_type(node_type: NodeType) -> Iterator[str]:
    facts = ["may wait" if node_type.is_async else "runs inside the advance"]
    facts += ["may head a loop"] if node_type.reentrant else []
    facts += [f"needs `{need}`" for need in node_type.requires]
    facts += ["with `--conformance` only"] if node_type.conformance_only else []
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
    """Name every published schema and the members of its document."""
    yield "# Schemas"
    yield ""
    yield "JSON Schemas (draft 2020-12) of the wire, generated from the types that decode it. A"
    yield "host serves each at its path. The payloads of events are on their [own page](events.md)."
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
}


def page(name: str) -> str:
    """The text of one page."""
    return "\n".join((_NOTE, "", *PAGES[name]())).rstrip() + "\n"


def main() -> None:
    """Write every page."""
    reference = DOCS / "reference"
    reference.mkdir(exist_ok=True)
    for name in PAGES:
        (reference / f"{name}.md").write_text(page(name))


if __name__ == "__main__":
    main()
