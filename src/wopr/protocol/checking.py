"""What is wrong with a document: every fault at once, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import jsonschema_rs
import msgspec

from wopr.protocol.documents import Closed, Json, JsonObject
from wopr.protocol.errors import Refused

_INDEX: Final = re.compile(r"\[(\d+)\]")


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
            # The same spelling as the schema's: steps parted by dots.
            steps = _INDEX.sub(r".\1", path.strip("`$."))
            yield Fault(path=steps, message=message)


def compile_schema(
    schema: JsonObject, *, mask: str | None = None
) -> jsonschema_rs.Draft202012Validator:
    """Compile a user's schema; it can never make the host fetch another document.

    With a mask, faults name a value by it and never show what it was.
    """

    def refuse(uri: str) -> Json:
        raise ValueError(f"references to other documents are not followed: {uri}")

    return jsonschema_rs.Draft202012Validator(schema, retriever=refuse, mask=mask)


def schema_faults(path: str, schema: JsonObject) -> Iterator[Fault]:
    """Find what keeps a user's schema from being one."""
    try:
        compile_schema(schema)
    except ValueError as fault:
        yield Fault(path=path, message=f"not a JSON Schema (draft 2020-12): {fault}")
