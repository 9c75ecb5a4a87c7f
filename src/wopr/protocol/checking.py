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


def refused(faults: Sequence[Fault], document: str, *, code: str = "validation_error") -> Refused:
    """The error that lists the faults of a document, which is named where no path can be."""
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Refused(
        f"{first.path or document}: {first.message}{more}",
        code=code,
        field=first.path,
        errors=[msgspec.to_builtins(fault) for fault in faults],
    )


def shape_faults(
    document: Json, schema: jsonschema_rs.Draft202012Validator, kind: type[msgspec.Struct]
) -> Iterator[Fault]:
    """Find what keeps a document from being one of this kind.

    The schema names every fault; the type knows rules that its schema cannot say.
    """
    found = [fault_of(error) for error in schema.iter_errors(document)]
    yield from found
    if not found:
        try:
            msgspec.convert(document, kind)
        except msgspec.ValidationError as fault:
            message, _, path = str(fault).partition(" - at ")
            # The same spelling as the schema's: steps parted by dots.
            steps = _INDEX.sub(r".\1", path.strip("`$."))
            yield Fault(path=steps, message=message)


def fault_of(error: jsonschema_rs.ValidationError, *within: str) -> Fault:
    """What a schema says of a value, in place of `within`.

    Where a value may have several forms and has none, the fault is that of the form to which it
    comes nearest; one that comes near to none is told what each form wants.
    """
    forms = [form for form in getattr(error.kind, "context", None) or () if form]
    deepest = max((each for form in forms for each in form), key=_depth, default=error)
    if _depth(deepest) > _depth(error):
        return fault_of(deepest, *within)
    wants = dict.fromkeys(_message(form[0]) for form in forms)
    return Fault(
        path=".".join([*within, *(str(step) for step in error.instance_path)]),
        message=", or ".join(wants) or _message(error),
    )


def _message(error: jsonschema_rs.ValidationError) -> str:
    """What is wrong, with all that could stand there and not only the first few."""
    options: list[Json] = getattr(error.kind, "options", None) or []
    said, of, _ = error.message.partition(" is not one of ")
    if not (options and of):
        return error.message
    *most, last = (msgspec.json.encode(option).decode() for option in options)
    return f"{said}{of}{', '.join(most)} or {last}" if most else error.message


def _depth(error: jsonschema_rs.ValidationError) -> int:
    return len(error.instance_path)


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
