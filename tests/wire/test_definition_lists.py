"""Descriptions of definitions have a limit, and lists of definitions have a size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import node, workflow
from tests.support.host import ACME, ServedHost

pytestmark = pytest.mark.both_stores

Connect = Callable[..., Wire]
NewHost = Callable[..., ServedHost]
LONGEST = 8192


def _definition(number: int, description: str) -> dict[str, object]:
    made = workflow([node("a", "core.identity")])
    return {**made, "id": f"listed-{number:03}", "description": description}


def test_a_description_above_the_limit_is_refused_with_its_size(acme: Wire) -> None:
    response = acme.post("/v1/workflows", json=_definition(0, "x" * (LONGEST + 1)))

    assert response.status_code == 400
    assert "description" in response.json()["message"]
    assert str(LONGEST) in response.text


def test_a_list_cuts_long_descriptions_and_the_definition_has_them_in_full(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host()
    wire = connect(ACME, host)
    wire.register(_definition(1, "y" * LONGEST))

    items = wire.get("/v1/workflows").json()["items"]
    [listed] = [item for item in items if item["id"] == "listed-001"]
    whole = wire.get("/v1/workflows/listed-001").json()
    with Person(host.url) as person:
        person.sign_in(ACME)
        page = person.get("/workflows").text

    assert listed["description"].startswith("yyy")
    assert listed["description"].endswith("…")
    assert len(listed["description"]) <= 500
    assert whole["description"] == "y" * LONGEST
    assert "y" * 501 not in page


def test_a_page_of_large_definitions_ends_early_with_a_cursor(
    new_host: NewHost, connect: Connect
) -> None:
    host = new_host()
    wire = connect(ACME, host)
    for number in range(40):
        large = _definition(number, "z" * LONGEST)
        large["metadata"] = {**large["metadata"], "notes": "n" * 200_000}  # type: ignore[dict-item]
        wire.register(large)

    first = wire.get("/v1/workflows?limit=200").json()
    seen = [item["id"] for item in first["items"]]
    cursor = first.get("nextCursor")
    while cursor:
        page = wire.get("/v1/workflows", params={"limit": 200, "cursor": cursor}).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page.get("nextCursor")

    assert "nextCursor" in first
    assert [name for name in seen if name.startswith("listed-")] == [
        f"listed-{number:03}" for number in range(40)
    ]
    assert len(set(seen)) == len(seen)


def test_the_versions_of_a_definition_are_listed_newest_first_in_any_number(
    acme: Wire, globex: Wire
) -> None:
    names = [f"1.0.{number}" for number in range(45)]
    for name in names:
        acme.register(_definition(900, "many versions") | {"version": name})

    items = acme.get("/v1/workflows/listed-900/versions").json()["items"]

    assert [item["version"] for item in items] == names[::-1]
    assert globex.get("/v1/workflows/listed-900/versions").status_code == 404
