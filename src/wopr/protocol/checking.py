"""What is wrong with a document: every fault at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jsonschema_rs
import msgspec

from wopr.protocol.documents import Closed, Json, JsonObject
from wopr.protocol.errors import Refused


class Fault(Closed, frozen=True, kw_only=True):
    """One thing that is wrong with a document, and where."""

    path: str
    message: str


def refused(faults: Sequence[Fault], document: str) -> Refused:
    """The error that lists the faults of a document, which is named where no path can be."""
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Refused(
        f"{first.path or document}: {first.message}{more}",
        field=first.path,
        errors=[msgspec.to_builtins(fault) for fault in faults],
    )


def shape_faults(
    document: Json, schema: jsonschema_rs.Draft202012Validator, kind: type[msgspec.Struct]
) -> Iterator[Fault]:
    """Find what keeps a document from being one of this kind.

    The schema names every fault; the type knows rules that its schema cannot say.
    """
    found = [
        Fault(path=".".join(str(step) for step in error.instance_path), message=error.message)
        for error in schema.iter_errors(document)
    ]
    yield from found
    if not found:
        try:
            msgspec.convert(document, kind)
        except msgspec.ValidationError as fault:
            message, _, path = str(fault).partition(" - at ")
            yield Fault(path=path.strip("`$.") or "", message=message)


def compile_schema(schema: JsonObject) -> jsonschema_rs.Draft202012Validator:
    """Compile a user's schema; it can never make the host fetch another document."""

    def refuse(uri: str) -> Json:
        raise ValueError(f"references to other documents are not followed: {uri}")

    return jsonschema_rs.Draft202012Validator(schema, retriever=refuse)


def schema_faults(path: str, schema: JsonObject) -> Iterator[Fault]:
    """Find what keeps a user's schema from being one."""
    try:
        compile_schema(schema)
    except ValueError as fault:
        yield Fault(path=path, message=f"not a JSON Schema (draft 2020-12): {fault}")
