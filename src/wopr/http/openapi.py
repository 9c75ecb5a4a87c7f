"""OpenAPI 3.1, generated from the operations that are served."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from wopr.http.operation import Operation, Parameter, camel_case
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import CATALOGUE, ErrorEnvelope
from wopr.version import __version__

REF_TEMPLATE = "#/components/schemas/{name}"


def openapi_document(operations: Iterable[Operation]) -> JsonObject:
    """Describe the operations."""
    operations = tuple(operations)
    schemas, components = _schemas(operations)
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        path = _wire_path(operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "WOPR",
            "version": __version__,
            "description": "OpenWOP v1, with extensions of this host marked x-wopr-extension.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
        },
    }


def _wire_path(path: str) -> str:
    """Return the path with camelCase parameters."""
    return re.sub(r"\{(\w+)\}", lambda found: "{" + camel_case(found[1]) + "}", path)


def _schemas(operations: tuple[Operation, ...]) -> tuple[dict[type[Any], JsonObject], JsonObject]:
    types = {ErrorEnvelope: None}
    for operation in operations:
        named = (operation.body, operation.response, operation.preview)
        types |= {t: None for t in named if t is not None}
    made, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    return dict(zip(types, made, strict=True)), components


def _operation(operation: Operation, schemas: dict[type[Any], JsonObject]) -> JsonObject:
    described: JsonObject = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            *(_path_parameter(name) for name in re.findall(r"\{(\w+)\}", operation.path)),
            *(_parameter(parameter) for parameter in operation.parameters),
        ],
        "responses": _responses(operation, schemas),
    }
    if operation.scope is not None:
        described["security"] = [{"apiKey": []}]
        described["x-openwop-scope"] = operation.scope
    if operation.is_extension:
        described["x-wopr-extension"] = True
    if operation.body is not None:
        described["requestBody"] = {
            "required": not operation.body_is_optional,
            "content": {"application/json": {"schema": schemas[operation.body]}},
        }
    if operation.body_types:
        text = {"schema": {"type": "string"}}
        described["requestBody"] = {
            "required": True,
            "content": dict.fromkeys(operation.body_types, text),
        }
    return described


def _path_parameter(name: str) -> JsonObject:
    schema = {"type": "string", "minLength": 1, "maxLength": 128}
    return {"name": camel_case(name), "in": "path", "required": True, "schema": schema}


def _parameter(parameter: Parameter) -> JsonObject:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _responses(operation: Operation, schemas: dict[type[Any], JsonObject]) -> JsonObject:
    good = {} if operation.response is None else {"schema": schemas[operation.response]}
    done: JsonObject = {"description": "Done"}
    if operation.success != 204:
        kinds = (operation.content_type, *operation.other_content_types)
        done["content"] = dict.fromkeys(kinds, good)
    responses: JsonObject = {str(operation.success): done}
    if operation.content_type == "text/event-stream":
        responses["200"]["content"]["application/json"] = {
            "schema": {"type": "object", "required": ["events"]}
        }
    for status in operation.other_statuses:
        responses[str(status)] = {"description": "Nothing new"}
        if status == 200 and operation.response is not None:
            responses["200"]["content"] = {operation.content_type: good}
    if operation.preview is not None:
        content = {operation.content_type: {"schema": schemas[operation.preview]}}
        responses["200"] = {"description": "What would happen", "content": content}
    envelope: JsonObject = {"application/json": {"schema": schemas[ErrorEnvelope]}}
    envelope |= {kind: {} for kind in operation.error_types}
    always = () if operation.scope is None else (401, 403, 429, 503)
    for status in sorted({*operation.errors, *always}):
        codes = ", ".join(code for code, known in CATALOGUE.items() if known == status)
        responses[str(status)] = {"description": f"One of: {codes}", "content": envelope}
    return responses
