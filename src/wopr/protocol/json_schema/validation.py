"""Validation of documents. All faults are reported, each with its path."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import jsonschema_rs
import msgspec

from wopr.protocol.documents import Closed, Json, JsonObject, is_list, is_object
from wopr.protocol.errors import Refused
from wopr.protocol.json_schema.size import MAX_DEPTH, MAX_STATES, fixed_faults, measure, weight_of
from wopr.protocol.offloading import WorkFailed, offload
from wopr.protocol.suggestions import unknown_key

# The code of a value that could not be checked in time.
SCHEMA_CHECK_FAILED: Final = "schema_check_failed"
# The limit of subschemas times values that this process checks (some 10 ms), and for which it
# explains the errors (at most 0.2 s).
_MAX_INLINE_CHECK: Final = 200_000
_MAX_INLINE_ERRORS: Final = 4_000
# The memory of a compiled schema: for each byte of its JSON, each pattern, and each state of a
# pattern.
_BYTES_PER_BYTE: Final = 100
_BYTES_PER_PATTERN: Final = 12_000
_BYTES_PER_STATE: Final = 60
_MAX_VIOLATIONS: Final = 20
# The limit of faults of one document.
MAX_FAULTS: Final = 100
_LONGEST_PATH: Final = 500
_LONGEST_MESSAGE: Final = 2_000
_INDEX: Final = re.compile(r"\[(\d+)\]")


class Fault(Closed, frozen=True, kw_only=True):
    """A fault of a document, and its path."""

    path: str
    message: str


def first_faults(found: Iterable[Fault]) -> list[Fault]:
    """Return the first hundred faults, with a note if there are more. Long texts are cut."""
    faults = [
        Fault(path=_cut(each.path, _LONGEST_PATH), message=_cut(each.message, _LONGEST_MESSAGE))
        for each in islice(found, MAX_FAULTS + 1)
    ]
    if len(faults) > MAX_FAULTS:
        message = f"there are more faults; only the first {MAX_FAULTS} are listed"
        faults[MAX_FAULTS] = Fault(path="", message=message)
    return faults


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def faults_error(
    faults: Sequence[Fault], document: str, *, code: str = "validation_error"
) -> Refused:
    """Return the error that lists the faults of a document."""
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Refused(
        f"{first.path or document}: {first.message}{more}",
        code=code,
        field=first.path,
        errors=[msgspec.to_builtins(fault) for fault in faults],
    )


class DocumentSchema:
    """The compiled JSON Schema of a kind of document. It finds every fault of a document."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        self._validator = jsonschema_rs.Draft202012Validator(schema)

    def faults(self, document: Json, *within: str) -> Iterator[Fault]:
        """Yield the faults of a document. A fault of an unknown key has a suggestion."""
        for error in self._validator.iter_errors(document):
            nearest_form = nearest_error(error)
            unexpected: list[str] = getattr(nearest_form.kind, "unexpected", None) or []
            if not unexpected:
                yield self._fault(error, nearest_form, *within)
            known = self._keys_beside(nearest_form)
            for name in unexpected:
                path = ".".join([*within, *map(str, nearest_form.instance_path), name])
                yield Fault(path=path, message=unknown_key(name, known))

    def _fault(
        self,
        error: jsonschema_rs.ValidationError,
        nearest_form: jsonschema_rs.ValidationError,
        *within: str,
    ) -> Fault:
        """Return a fault. The description of a pattern is used if the schema has one."""
        fault = fault_of(error, *within)
        expected: Json = self._schema_of(nearest_form).get("description")
        if nearest_form.schema_path[-1] != "pattern" or not isinstance(expected, str):
            return fault
        shown = msgspec.json.encode(nearest_form.instance).decode()
        return Fault(path=fault.path, message=f"{shown} is not {expected}")

    def _schema_of(self, error: jsonschema_rs.ValidationError) -> JsonObject:
        """Return the schema that has the failed keyword."""
        part: Json = self._schema
        for step in error.schema_path[:-1]:
            part = part[step]
        found: JsonObject = part
        return found

    def _keys_beside(self, error: jsonschema_rs.ValidationError) -> Collection[str]:
        """Return the keys of the object schema that has the failed keyword."""
        keys: JsonObject = self._schema_of(error).get("properties", {})
        return keys


def document_faults(
    document: Json, shape: DocumentSchema, kind: type[msgspec.Struct]
) -> Iterator[Fault]:
    """Yield the faults of a document under a schema and its type.

    The type is checked if the schema finds no fault: it has rules that the schema cannot express.
    """
    has_fault = False
    for fault in shape.faults(document):
        has_fault = True
        yield fault
    if not has_fault:
        try:
            msgspec.convert(document, kind)
        except msgspec.ValidationError as fault:
            message, _, path = str(fault).partition(" - at ")
            # The same format as the paths of the schema: separated by dots.
            steps = _INDEX.sub(r".\1", path.strip("`$."))
            yield Fault(path=steps, message=message)


def close_objects(schema: Json) -> Json:
    """Return a copy of a schema in which objects with `properties` refuse other members.

    Objects with `additionalProperties`, and parts of an `allOf`, are not changed.
    """
    if is_list(schema):
        return [close_objects(each) for each in schema]
    if not is_object(schema):
        return schema
    copied = {key: each if key == "allOf" else close_objects(each) for key, each in schema.items()}
    if is_object(copied.get("properties")) and "allOf" not in copied:
        copied.setdefault("additionalProperties", False)
    return copied


def nearest_error(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Return the error of the nearest form, if a value may have several forms and matches none."""
    forms = _forms(error)
    # Forms with another tag are ignored, unless all forms have another tag.
    candidates = [form for form in forms if not any(map(_tag, form))] or forms
    leaves = (nearest_error(each) for form in candidates for each in form)
    deepest = max(leaves, key=_depth, default=error)
    return deepest if _depth(deepest) > _depth(error) else error


def _forms(error: jsonschema_rs.ValidationError) -> list[list[jsonschema_rs.ValidationError]]:
    return [form for form in getattr(error.kind, "context", None) or () if form]


def _tag(error: jsonschema_rs.ValidationError) -> list[Json]:
    """Return the only value that a form allows for a member, in a list; empty for other faults."""
    options: list[Json] = getattr(error.kind, "options", None) or []
    is_member = bool(error.instance_path) and isinstance(error.instance_path[-1], str)
    return options if is_member and len(options) == 1 else []


def _tags(error: jsonschema_rs.ValidationError, path: list[str | int]) -> list[Json]:
    """Return the tags that the forms of a value allow at a path."""
    found = _tag(error) if list(error.instance_path) == path else []
    for each in (each for form in _forms(error) for each in form):
        found = [*found, *(tag for tag in _tags(each, path) if tag not in found)]
    return found


def fault_of(error: jsonschema_rs.ValidationError, *within: str) -> Fault:
    """Return the fault of a value under a schema.

    If no form is near, the message lists all forms.
    """
    nearest_form = nearest_error(error)
    tags = _tags(error, list(nearest_form.instance_path)) if _tag(nearest_form) else []
    expected = dict.fromkeys(_message(form[0]) for form in _forms(nearest_form))
    return Fault(
        path=".".join([*within, *(str(step) for step in nearest_form.instance_path)]),
        message=", or ".join(expected) or _message(nearest_form, tags),
    )


def _message(error: jsonschema_rs.ValidationError, tags: list[Json] | None = None) -> str:
    """Return the message of a fault, with all allowed values."""
    options: list[Json] = tags or getattr(error.kind, "options", None) or []
    start, separator, _ = error.message.partition(" is not one of ")
    if not (options and separator):
        return error.message
    *others, last = (msgspec.json.encode(option).decode() for option in options)
    return f"{start}{separator}{', '.join(others)} or {last}" if others else error.message


def _depth(error: jsonschema_rs.ValidationError) -> int:
    return len(error.instance_path)


def _compile(schema: JsonObject, mask: str | None = None) -> jsonschema_rs.Draft202012Validator:
    """Compile a user's schema. References to other documents are refused."""

    def refuse(uri: str) -> Json:
        raise ValueError(f"references to other documents are not followed: {uri}")

    return jsonschema_rs.Draft202012Validator(schema, retriever=refuse, mask=mask)


def check_schema(schema: JsonObject) -> None:
    """Raise `ValueError` for a schema that cannot be compiled, or only slowly."""
    for fault in fixed_faults(measure(schema)):
        raise ValueError(fault)
    _compile(schema)


def schema_faults(path: str, schema: JsonObject) -> Iterator[Fault]:
    """Yield the fault of a user's schema that cannot be used."""
    try:
        check_schema(schema)
    except ValueError as fault:
        yield Fault(path=path, message=f"not a JSON Schema (draft 2020-12): {fault}")


class Violation(NamedTuple):
    """A violation of a user's schema: its path in the value, and a message.

    The code is not `validation_error` if the value could not be checked.
    """

    path: tuple[str | int, ...]
    message: str
    code: str = "validation_error"

    def place(self, *within: str) -> str:
        """Return the path, separated by dots; empty for the whole value."""
        return ".".join([*within, *map(str, self.path)])


class UserSchema:
    """A user's JSON Schema, which checks values.

    Applying such a schema can take very long, and cannot be stopped within this process. So this
    process checks a value only if the sizes of schema and value ensure that it takes a few
    milliseconds. Other checks are offloaded to a subprocess. The schema is compiled at its first
    use. An earlier version may have stored a schema that is too large to compile: the subprocess
    refuses it. With a mask, messages contain the mask instead of the value.
    """

    __slots__ = ("_mask", "_schema", "_size", "_validator")

    def __init__(self, schema: JsonObject, *, mask: str | None = None) -> None:
        self._schema = schema
        self._mask = mask
        self._size = measure(schema)
        self._validator: jsonschema_rs.Draft202012Validator | None = None

    def violations(self, value: Json) -> Sequence[Violation]:
        """Return the violations of a value; empty if the value is valid.

        Raises `WorkNeeded` if a subprocess must check the value.
        """
        weight = self._weight(value)
        try:
            if weight is not None:
                validator = self._compiled()
                if validator.is_valid(value):
                    return ()
                # An error copies its value, once for each alternative form.
                if self._size.subschemas * weight <= _MAX_INLINE_ERRORS:
                    return _violations(validator, value)
            found: list[tuple[list[str | int], str]] = offload(
                violations_of, self._schema, self._mask, value
            )
        except ValueError as fault:
            return (Violation((), f"the schema cannot be used: {fault}"),)
        except WorkFailed as failed:
            return (Violation((), f"could not be checked: {failed}", SCHEMA_CHECK_FAILED),)
        return [Violation(tuple(path), message) for path, message in found]

    @property
    def compiled_bytes(self) -> int:
        """Return the maximum memory of the compiled schema in this process."""
        if not self._is_applied_inline:
            return 0
        return (
            _BYTES_PER_BYTE * len(msgspec.json.encode(self._schema))
            + _BYTES_PER_PATTERN * self._size.patterns
            + _BYTES_PER_STATE * self._size.states
        )

    def is_valid_inline(self, value: Json) -> bool:
        """Return whether a value is valid. False if this process cannot check it."""
        try:
            return self._weight(value) is not None and self._compiled().is_valid(value)
        except ValueError:
            return False

    @property
    def _is_applied_inline(self) -> bool:
        """Return whether this process applies the schema to small values."""
        size = self._size
        return size.is_bounded and size.states <= MAX_STATES and size.depth <= MAX_DEPTH

    def _weight(self, value: Json) -> int | None:
        """Return the weight of a value, or None if this process cannot check it."""
        size = self._size
        if not self._is_applied_inline:
            return None
        limit = _MAX_INLINE_CHECK // (size.subschemas + size.fractions + size.states // 4)
        weight = weight_of(value, limit)
        return weight if weight <= limit else None

    def _compiled(self) -> jsonschema_rs.Draft202012Validator:
        if self._validator is None:
            self._validator = _compile(self._schema, self._mask)
        return self._validator


def violations_of(schema: JsonObject, mask: str | None, value: Json) -> Json:
    """Return the violations of a value as JSON. Called in a subprocess."""
    try:
        validator = _compile(schema, mask)
    except ValueError as fault:
        return [[[], f"the schema cannot be used: {fault}"]]
    if validator.is_valid(value):
        return []
    return [[list(each.path), each.message] for each in _violations(validator, value)]


def _violations(validator: jsonschema_rs.Draft202012Validator, value: Json) -> Sequence[Violation]:
    found: list[Violation] = []
    for error in islice(validator.iter_errors(value), _MAX_VIOLATIONS):
        message = _cut(fault_of(error).message, _LONGEST_MESSAGE)
        found.append(Violation(tuple(nearest_error(error).instance_path), message))
    return found
