"""Forms of browsers, and form fields generated from JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec

from wopr.console.formatting import pretty
from wopr.http.request import Request, WrongMediaType, decode_any
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode, list_of, object_of
from wopr.protocol.errors import Refused, WoprError

T = TypeVar("T")
URLENCODED: Final = "application/x-www-form-urlencoded"
MAX_FIELDS: Final = 500
# The limit for a form without values of a workflow and without long texts.
SMALL_FORM_BYTES: Final = 64 * 1024


class Form:
    """The fields of a form. Spaces around a value are removed."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields

    def get(self, name: str) -> str:
        """Return the value of a field; empty if the field is empty or absent."""
        return self.fields.get(name, "").strip()

    def choice(self, name: str, among: tuple[str, ...], default: str = "") -> str:
        """Return the value of a field that must be one of a few; the default if it is absent."""
        value = self.get(name) or default
        if value not in among:
            raise Refused(f"{name} must be one of {', '.join(among)}", field=name)
        return value


async def read_form(request: Request, most: int | None = None) -> Form:
    """Read a form of at most `most` bytes. The last value of a repeated field counts."""
    raw = await request.body(most)
    request.store_body(raw)
    media = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
    if raw and media != URLENCODED:
        raise WrongMediaType(
            f"Content-Type of a form must be {URLENCODED}, not {media!r}", field="Content-Type"
        )
    try:
        fields = parse_qsl(raw.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise Refused("The form cannot be decoded.", field="body") from error
    return Form(dict(fields))


def document(fields: Mapping[str, object], kind: type[T]) -> T:
    """Convert the fields of a form to a wire document. Empty fields are omitted."""
    try:
        return msgspec.convert({name: value for name, value in fields.items() if value}, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        name = path.strip("`").removeprefix("$.") or "form"
        raise Refused(f"{name}: {message}", field=name) from error


FieldKind: TypeAlias = Literal[
    "text", "long", "secret", "number", "whole", "boolean", "choice", "lines", "json"
]
# A text that may be this long or longer gets a field of several lines.
LONG_TEXT: Final = 200
_BY_TYPE: Final[dict[str, FieldKind]] = {
    "string": "text",
    "number": "number",
    "integer": "whole",
    "boolean": "boolean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: its name in the form, and the path of its value in the document."""

    name: str
    path: str
    title: str
    kind: FieldKind
    help: str = ""
    is_required: bool = False
    options: Sequence[tuple[str, str]] = ()
    # Texts that a JSON field accepts without quotes.
    unquoted: Sequence[str] = ()
    value: str = ""
    problem: str = ""

    def with_value(self, form: Form) -> Field:
        """Return the field with the value that was sent."""
        return replace(self, value=form.get(self.name)) if self.name in form.fields else self

    def with_problem(self, path: str, message: str) -> Field:
        """Return the field with an error message, if the path is the field's."""
        is_here = path == self.path or path.startswith(f"{self.path}.")
        return replace(self, problem=message.removeprefix(path).strip(": ")) if is_here else self


def fields_of(
    schema: JsonObject, name: str, path: str, title: str, *, is_required: bool = True
) -> list[Field]:
    """Return the fields for a value: one for each member of an object, else one field."""
    members = members_of(schema)
    if not members:
        return [field_of(schema, name, path, title, is_required=is_required)]
    required = list_of(schema.get("required"))
    return [
        field_of(
            object_of(member), f"{name}.{key}", f"{path}.{key}", key, is_required=key in required
        )
        for key, member in members.items()
    ]


def members_of(schema: JsonObject) -> JsonObject:
    """Return the members of a schema whose only type is object; else none."""
    is_object = schema.get("type") == "object"
    return object_of(schema.get("properties")) if is_object else {}


def field_of(
    schema: JsonObject, name: str, path: str, title: str, *, is_required: bool = True
) -> Field:
    """Return one field for a whole value."""
    default: Json = schema.get("default", UNSET)
    kind = _kind(schema)
    return Field(
        name=name,
        path=path,
        title=str(schema.get("title") or title),
        kind=kind,
        help=str(schema.get("description", "")),
        is_required=is_required,
        options=_options(schema),
        unquoted=_unquoted(schema),
        value="" if isinstance(default, Unset) else field_text(default, kind),
    )


def _kind(schema: JsonObject) -> FieldKind:
    if "enum" in schema or "const" in schema:
        return "choice"
    kind: Json = schema.get("type")
    if kind == "array":
        is_texts = object_of(schema.get("items")).get("type") == "string"
        return "lines" if is_texts else "json"
    found = _BY_TYPE.get(kind, "json") if isinstance(kind, str) else "json"
    longest: Json = schema.get("maxLength", 0)
    is_long = isinstance(longest, int) and longest >= LONG_TEXT
    return "long" if found == "text" and is_long else found


def _options(schema: JsonObject) -> list[tuple[str, str]]:
    values = [schema["const"]] if "const" in schema else list_of(schema.get("enum"))
    return [
        (encode(value).decode(), value if isinstance(value, str) else encode(value).decode())
        for value in values
    ]


def _unquoted(schema: JsonObject) -> list[str]:
    """Return the texts in the enumerations of a schema's alternatives."""
    branches = [*list_of(schema.get("anyOf")), *list_of(schema.get("oneOf"))]
    named = [text for branch in branches for text in list_of(object_of(branch).get("enum"))]
    return [text for text in named if isinstance(text, str)]


def field_text(value: Json, kind: FieldKind) -> str:
    """Return a value as text for its field."""
    match kind:
        case "text" | "long" if isinstance(value, str):
            return value
        case "lines":
            return "\n".join(str(each) for each in list_of(value))
        case "choice" | "boolean":
            return encode(value).decode()
        case _:
            return pretty(value)


def value_of(fields: Sequence[Field], form: Form, schema: JsonObject) -> Json:
    """Return the value of the filled fields of a schema; `UNSET` if all are empty."""
    if not members_of(schema):
        return read_field(fields[0], form)
    read = {field.path.rpartition(".")[2]: read_field(field, form) for field in fields}
    return {name: value for name, value in read.items() if not isinstance(value, Unset)}


def read_field(field: Field, form: Form) -> Json:
    """Return the value of one field; `UNSET` if it is empty. `Refused` names the field's path."""
    raw = form.get(field.name)
    if not raw:
        return UNSET
    match field.kind:
        case "text" | "long" | "secret":
            return raw
        case "lines":
            return [line.strip() for line in raw.splitlines() if line.strip()]
        case _:
            return raw if raw in field.unquoted else _decode(field, raw)


_EXPECTED: Final[dict[FieldKind, str]] = {
    "number": "must be a number",
    "whole": "must be a whole number",
    "boolean": "must be true or false",
}


def _decode(field: Field, raw: str) -> Json:
    try:
        value = decode_any(raw.encode())
    except WoprError:
        value = UNSET
    is_bad = isinstance(value, Unset) or (field.kind in _EXPECTED and isinstance(value, str))
    if is_bad:
        expected = _EXPECTED.get(field.kind, 'must be JSON; put a text in quotes: "…"')
        raise Refused(f"{field.path}: {expected}", field=field.path)
    return value
