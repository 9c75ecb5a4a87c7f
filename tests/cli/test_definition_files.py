from __future__ import annotations

import json
from pathlib import Path

import pytest

from wopr.runs.definitions.files import (
    DefinitionUnreadable,
    find_definitions,
    load_definition,
)


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(DefinitionUnreadable) as refused:
        load_definition(path)
    return str(refused.value)


def test_json_and_yaml_of_the_same_definition_give_the_same_object(tmp_path: Path) -> None:
    as_json = written(tmp_path, "a.json", '{"id": "hello", "nodes": [{"x": 1.5, "on": true}]}')
    as_yaml = written(tmp_path, "a.yaml", 'id: hello\nnodes:\n  - {x: 1.5, "on": true}\n')

    assert load_definition(as_json) == load_definition(as_yaml)


def test_a_duplicate_key_is_refused_with_its_line_in_yaml(tmp_path: Path) -> None:
    path = written(tmp_path, "a.yml", "id: one\nname: x\nid: two\n")

    assert refusal(path) == f"{path}:3: the key 'id' is duplicated"


def test_a_duplicate_key_is_refused_with_its_line_in_json(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", '{\n\t"id": 1,\n\t"deep": {"k": 1,\n\t\t"k": 2}\n}')

    assert refusal(path) == f"{path}:4: the key 'k' is duplicated"


def test_invalid_json_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "a.json:2: not JSON" in refusal(written(tmp_path, "a.json", '{\n"id": }'))


def test_invalid_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "a.yaml:2: " in refusal(written(tmp_path, "a.yaml", "id: hello\nname: a: b\n"))


def test_a_date_in_yaml_stays_text(tmp_path: Path) -> None:
    path = written(tmp_path, "a.yaml", "createdAt: 2024-01-02\nat: 2024-01-02T03:04:05Z\n")

    assert load_definition(path) == {"createdAt": "2024-01-02", "at": "2024-01-02T03:04:05Z"}


def test_a_merge_key_is_supported(tmp_path: Path) -> None:
    path = written(tmp_path, "a.yaml", "base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\n")

    assert load_definition(path)["more"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1: one\n", "a key must be text"),
        ("on: one\n", "a key must be text"),
        ("a: .nan\n", "not a JSON number"),
        ("a: !!binary aGk=\n", "a bytes is not a JSON value"),
        ("a: !!set {x, y}\n", "a set is not a JSON value"),
        ("a: !!python/object/apply:os.system [id]\n", "could not determine a constructor"),
        ("- a\n- b\n", "a definition must be an object"),
        ("a: &a [*a]\n", "too large or nested too deeply"),
        ("", "a definition must be an object"),
    ],
)
def test_yaml_that_is_not_a_json_object_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(written(tmp_path, "a.yaml", text))


def test_expanding_aliases_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    assert "too large" in refusal(written(tmp_path, "a.yaml", "\n".join(lines)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        ('{"a": "\\ud800"}', "cannot be written as JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_outside_the_standard_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(written(tmp_path, "a.json", text))


def test_other_suffixes_missing_files_and_other_encodings_are_refused(tmp_path: Path) -> None:
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"name": "\xe9"}')

    assert "ends in .json" in refusal(written(tmp_path, "a.txt", "{}"))
    assert "No such file" in refusal(tmp_path / "missing.yaml")
    assert "not UTF-8 at byte 10" in refusal(latin)


def test_a_directory_returns_its_definition_files_by_name(tmp_path: Path) -> None:
    for name in ("b.json", "a.yaml", "c.YML", "notes.txt", ".hidden.json"):
        written(tmp_path, name, json.dumps({}))
    (tmp_path / "folder.json").mkdir()

    assert [path.name for path in find_definitions(tmp_path)] == ["a.yaml", "b.json", "c.YML"]


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionUnreadable):
        find_definitions(tmp_path / "missing")
