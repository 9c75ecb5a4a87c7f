"""Fields of a form from a JSON Schema, and the value that the filled fields stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from wopr.console.form import Form
from wopr.console.json_values import list_of, object_of
from wopr.console.words import pretty
from wopr.http.exchange import decode_any
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset, encode
from wopr.protocol.errors import Refused, WoprError

FieldKind: TypeAlias = Literal[
    "text", "long", "secret", "number", "whole", "boolean", "choice", "lines", "json"
]
# From this length on a text gets more than one line.
LONG_TEXT: Final = 200
_BY_TYPE: Final[dict[str, FieldKind]] = {
    "string": "text",
    "number": "number",
    "integer": "whole",
    "boolean": "boolean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: its name in the form, and the place of its value in the answer."""

    name: str
    path: str
    title: str
    kind: FieldKind
    help: str = ""
    is_required: bool = False
    options: Sequence[tuple[str, str]] = ()
    # Texts that stand for themselves in a field of JSON.
    words: Sequence[str] = ()
    value: str = ""
    problem: str = ""

    def filled(self, form: Form) -> Field:
        """The field as it was sent."""
        return replace(self, value=form.get(self.name)) if self.name in form.fields else self

    def blamed(self, path: str, message: str) -> Field:
        """The field with what is wrong at a place, if it is the one there."""
        is_here = path == self.path or path.startswith(f"{self.path}.")
        return replace(self, problem=message.removeprefix(path).strip(": ")) if is_here else self


def fields_of(
    schema: JsonObject, name: str, path: str, title: str, *, is_required: bool = True
) -> list[Field]:
    """The fields for a value: one for each member of an object, else one for all of it."""
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
    """The members that a schema of an object names; none when it may be something else too."""
    is_object = schema.get("type") == "object"
    return object_of(schema.get("properties")) if is_object else {}


def field_of(
    schema: JsonObject, name: str, path: str, title: str, *, is_required: bool = True
) -> Field:
    """The one field for a value."""
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
        words=_words(schema),
        value="" if isinstance(default, Unset) else written(default, kind),
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


def _words(schema: JsonObject) -> list[str]:
    """The texts that a schema names among its alternatives."""
    branches = [*list_of(schema.get("anyOf")), *list_of(schema.get("oneOf"))]
    named = [text for branch in branches for text in list_of(object_of(branch).get("enum"))]
    return [text for text in named if isinstance(text, str)]


def written(value: Json, kind: FieldKind) -> str:
    """A value as its field shows it."""
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
    """The value that `fields_of` this schema stand for; unset when nothing was filled in."""
    if not members_of(schema):
        return read_field(fields[0], form)
    read = {field.path.rpartition(".")[2]: read_field(field, form) for field in fields}
    return {name: value for name, value in read.items() if not isinstance(value, Unset)}


def read_field(field: Field, form: Form) -> Json:
    """The value of one field; unset when it was left empty. Raises `Refused` by its place."""
    raw = form.get(field.name)
    if not raw:
        return UNSET
    match field.kind:
        case "text" | "long" | "secret":
            return raw
        case "lines":
            return [line.strip() for line in raw.splitlines() if line.strip()]
        case _:
            return raw if raw in field.words else _decoded(field, raw)


_EXPECTED: Final[dict[FieldKind, str]] = {
    "number": "must be a number",
    "whole": "must be a whole number",
    "boolean": "must be true or false",
}


def _decoded(field: Field, raw: str) -> Json:
    try:
        value = decode_any(raw.encode())
    except WoprError:
        value = UNSET
    is_bad = isinstance(value, Unset) or (field.kind in _EXPECTED and isinstance(value, str))
    if is_bad:
        expected = _EXPECTED.get(field.kind, 'must be JSON; a text stands in quotes: "…"')
        raise Refused(f"{field.path}: {expected}", field=field.path)
    return value
