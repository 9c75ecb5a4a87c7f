from __future__ import annotations

import pytest

from wopr.protocol.documents import Json
from wopr.security.credential_names import credential_paths

SECRET = "sk-" + "proj4bC9dE2fG7hJ1kL5mN8pQ3"


@pytest.mark.parametrize(
    ("document", "places"),
    [
        ({"a": {"b": [1, SECRET]}}, ["a.b.1"]),
        ([{"x": f"key {SECRET}"}, SECRET], ["0.x", "1"]),
        ({"a": {SECRET: "value"}}, ["a"]),
        ({"a": SECRET, "b": {"c": SECRET}}, ["a", "b.c"]),
        (SECRET, [""]),
    ],
)
def test_a_plain_credential_is_found_with_its_place(document: Json, places: list[str]) -> None:
    assert list(credential_paths(document)) == places


@pytest.mark.parametrize(
    "document",
    [
        {"credentialsRef": "cred_9f8e7d6c5b4a"},
        {"nodes": [{"config": {"credentialRef": "cred_9f8e7d6c5b4a"}}]},
        {"text": "the Bearer of this letter", "n": 1, "none": None, "list": [True]},
        {},
    ],
)
def test_references_and_ordinary_text_are_not_credentials(document: Json) -> None:
    assert list(credential_paths(document)) == []
