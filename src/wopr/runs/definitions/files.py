"""Read workflow definitions from JSON and YAML files.

Both formats give the same JSON object. In YAML, duplicate keys, keys that are not text and values
that JSON does not have are refused with their line. A date stays text.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Final, cast

from wopr.protocol.documents import JsonObject, encode

SUFFIXES: Final = frozenset({".json", ".yaml", ".yml"})
# Aliases can make a small file large; no definition needs this many values.
MAX_VALUES: Final = 200_000
MAX_DEPTH: Final = 100


class DefinitionUnreadable(ValueError):
    """A file without a readable definition. The message has the path and, if known, the line."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        where = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


def find_definitions(directory: Path) -> list[Path]:
    """List the definition files of a directory by name, without subdirectories."""
    try:
        entries = sorted(directory.iterdir())
    except OSError as fault:
        raise DefinitionUnreadable(directory, fault.strerror or "cannot be read") from None
    return [
        entry
        for entry in entries
        if entry.suffix.lower() in SUFFIXES and entry.is_file() and not entry.name.startswith(".")
    ]


def load_definition(path: Path) -> JsonObject:
    """Read one definition. Its content is not checked."""
    if path.suffix.lower() not in SUFFIXES:
        raise DefinitionUnreadable(path, "a definition file ends in .json, .yaml or .yml")
    text = _read_text(path)
    document = _load_json(path, text) if path.suffix.lower() == ".json" else _load_yaml(path, text)
    if not isinstance(document, dict):
        raise DefinitionUnreadable(path, "a definition must be an object", 1)
    definition = cast("JsonObject", document)
    _require_json(path, definition)
    return definition


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as fault:
        raise DefinitionUnreadable(path, fault.strerror or "cannot be read") from None
    except UnicodeDecodeError as fault:
        raise DefinitionUnreadable(path, f"not UTF-8 at byte {fault.start}") from None


class _DuplicateKey(ValueError):
    """A duplicate key in a JSON object."""


def _load_json(path: Path, text: str) -> object:
    try:
        document: object = json.loads(
            text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant
        )
        return document
    except json.JSONDecodeError as fault:
        raise DefinitionUnreadable(path, f"not JSON: {fault.msg}", fault.lineno) from None
    except _DuplicateKey as fault:
        # The JSON parser gives no line. The YAML parser reads the same text and gives one. Tabs
        # between JSON tokens have no meaning, and strings have no unescaped tabs.
        _load_yaml(path, text.replace("\t", " "))
        raise DefinitionUnreadable(path, str(fault)) from None
    except ValueError as fault:
        raise DefinitionUnreadable(path, f"not JSON: {fault}") from None
    except RecursionError:
        raise DefinitionUnreadable(path, "nested too deeply") from None


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise _DuplicateKey(f"the key {key!r} is duplicated")
        values[key] = value
    return values


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _load_yaml(path: Path, text: str) -> object:
    # Imported here because the library is slow to import.
    import yaml

    from wopr.process.yaml_loader import StrictLoader

    try:
        return cast("object", yaml.load(text, Loader=StrictLoader))
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        line = None if mark is None else mark.line + 1
        raise DefinitionUnreadable(path, fault.problem or "not YAML", line) from None
    except (yaml.YAMLError, ValueError) as fault:
        raise DefinitionUnreadable(path, f"not YAML: {fault}") from None
    except RecursionError:
        raise DefinitionUnreadable(path, "nested too deeply") from None


def _require_json(path: Path, document: object) -> None:
    """Refuse values that JSON does not have, and documents that aliases make too large."""
    pending: list[tuple[object, int]] = [(document, 0)]
    count = 0
    while pending:
        value, depth = pending.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_VALUES:
            raise DefinitionUnreadable(path, "too large or nested too deeply for a definition")
        _require_json_value(path, value)
        pending.extend((part, depth + 1) for part in _parts(value))
    try:
        encode(document)
    except UnicodeError as fault:
        raise DefinitionUnreadable(path, f"cannot be written as JSON: {fault}") from None


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast("dict[object, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []


def _require_json_value(path: Path, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise DefinitionUnreadable(path, f"{value} is not a JSON number")
    if value is not None and not isinstance(value, str | int | float | dict | list):
        raise DefinitionUnreadable(path, f"a {type(value).__name__} is not a JSON value")
