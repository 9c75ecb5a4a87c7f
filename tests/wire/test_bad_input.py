from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.wire.refusals import JSON, refusal
from wopr.http.app import OPERATIONS
from wopr.http.operation import Operation
from wopr.protocol.documents import JsonObject

# No admin can change quotas and read metrics; `test_quotas` tests their bad input.
OPERATOR_S = ("quotas:manage", "metrics:read")
OPEN_TO_ADMINS = [operation for operation in OPERATIONS if operation.scope not in OPERATOR_S]
WRITERS = [operation for operation in OPEN_TO_ADMINS if operation.body is not None]
READERS = [o for o in OPEN_TO_ADMINS if o.method == "GET" and o.scope is not None]

NOT_JSON = {
    "nothing": b"",
    "blank": b" \n",
    "half an object": b'{"workflowId": "hello"',
    "single quotes": b"{'workflowId': 'hello'}",
    "a trailing comma": b'{"workflowId": "hello",}',
    "a comment": b'{"workflowId": "hello"} // run it',
    "two documents": b'{"workflowId": "hello"}{}',
    "invalid utf-8": b'{"workflowId": "hell\xff"}',
    "half a character": b'{"workflowId": "hell\xc3"}',
    "an overlong character": b'{"workflowId": "hell\xc0\xaf"}',
    "utf-16": '{"workflowId": "hello"}'.encode("utf-16"),
    "a raw control character": b'{"workflowId": "he\x00llo"}',
    "a lone surrogate": b'{"workflowId": "\\ud800"}',
    "a bad escape": b'{"workflowId": "\\x"}',
    "not a number": b'{"workflowId": "hello", "inputs": {"n": NaN}}',
    "infinity": b'{"workflowId": "hello", "inputs": {"n": -Infinity}}',
    "a leading zero": b'{"workflowId": "hello", "inputs": {"n": 01}}',
    "a hundred thousand brackets": b"[" * 100_000,
    "a hundred thousand objects": b'{"a":' * 100_000,
}
NOT_AN_OBJECT = [b"[]", b'"text"', b"7", b"null", b"true", b"[{}]"]
ODD_IDS = [
    "x" * 129,
    "x" * 4000,
    "%00",
    "a%00b",
    "%ff%fe",
    "%ed%a0%80",
    "%F0%9F%92%A9",
    "..",
    "..%2f..%2fetc%2fpasswd",
    "%27%20OR%201%3D1--",
    "*",
    "%25",
    "a:b",
    "-1",
    "%0d%0aX-Evil:%20yes",
]
ODD_VALUES = ["", "\x00", "\ud800", "9" * 400, "-1", "1e3", "'; DROP TABLE runs; --", "%"]
# Ids that change the path.
MISLEADING = {"..", "..%2f..%2fetc%2fpasswd", "a:b"}


@pytest.fixture
def unchanged(acme: Wire) -> Iterator[None]:
    """Check that the test creates no run and no workflow."""
    newest = _newest_run(acme)
    own = [w for w in _workflows(acme) if not w["isShared"]]
    yield
    assert _newest_run(acme) == newest
    assert [w for w in _workflows(acme) if not w["isShared"]] == own


def _newest_run(wire: Wire) -> str:
    """Return its id only: a run of an earlier test may still be active."""
    items = wire.document("/v1/runs", params={"limit": 1})["items"]
    return str(items[0]["runId"]) if items else ""


def _workflows(wire: Wire) -> list[JsonObject]:
    found: list[JsonObject] = wire.document("/v1/workflows", params={"limit": 200})["items"]
    return found


def _path(operation: Operation, name: str = "nothing") -> str:
    return re.sub(r"\{\w+(:path)?\}", name, operation.path)


# Bodies


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_a_body_that_is_not_json_is_refused(acme: Wire, body: bytes) -> None:
    envelope = refusal(acme.post("/v1/runs", content=body, headers=JSON), 400)

    assert envelope["error"] == "validation_error"
    assert envelope["details"]["field"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("operation", WRITERS, ids=lambda each: each.name)
def test_every_operation_refuses_a_body_that_is_not_an_object(
    acme: Wire, operation: Operation
) -> None:
    for body in (*NOT_AN_OBJECT, NOT_JSON["half an object"], NOT_JSON["invalid utf-8"]):
        response = acme.post(_path(operation), content=body, headers=JSON)

        # A missing resource is reported as missing, whatever the body is.
        if "{" in operation.path:
            refusal(response, 404)
        elif operation.name == "validateWorkflow" and response.status_code == 200:
            assert response.json()["valid"] is False
        else:
            assert refusal(response, 400)["details"]["field"] is not None


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("operation", WRITERS, ids=lambda each: each.name)
@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/xml", "multipart/form-data", "x"]
)
def test_every_operation_refuses_another_media_type(
    acme: Wire, operation: Operation, media_type: str
) -> None:
    response = acme.post(_path(operation), content=b"{}", headers={"Content-Type": media_type})

    envelope = refusal(response, 404 if "{" in operation.path else 415)
    unknown = ("not_found", "interrupt_not_found")
    assert envelope["error"] in ("unsupported_media_type", *unknown)


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "application/ld+json", "APPLICATION/JSON"]
)
def test_json_is_accepted_under_its_other_media_types(acme: Wire, media_type: str) -> None:
    body = json.dumps({"workflowId": "conformance-noop"})

    response = acme.post("/v1/runs", content=body, headers={"Content-Type": media_type})

    assert response.status_code == 201


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("depth", [70, 500, 900, 1100, 3000])
@pytest.mark.parametrize("member", ["inputs", "configurable", "metadata"])
def test_a_body_nested_too_deeply_is_refused(acme: Wire, depth: int, member: str) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    body = f'{{"workflowId": "conformance-noop", "{member}": {nested}}}'

    envelope = refusal(acme.post("/v1/runs", content=body, headers=JSON), 400)

    assert envelope["error"] == "validation_error"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("part", ["[]", '{"a":1}'])
def test_a_body_of_too_many_lists_and_objects_is_refused(acme: Wire, part: str) -> None:
    parts = ",".join([part] * 250_000)
    body = f'{{"workflowId": "conformance-identity", "inputs": {{"payload": {{"a": [{parts}]}}}}}}'

    envelope = refusal(acme.post("/v1/runs", content=body, headers=JSON), 400)

    assert envelope["message"] == "the body may have at most 200000 lists and objects"
    assert envelope["details"]["limit"] == 200_000


def test_brackets_in_texts_do_not_count_as_nesting(acme: Wire) -> None:
    texts = ["[" * 300, '"[{' * 300, "\\[" * 300, '\\"{' * 300, "]", "}"]
    payload: JsonObject = {"[[": [texts] * 20, '\\"{': "[" * 50_000}

    found = acme.run("conformance-identity", {"payload": payload})

    assert found["variables"]["payload"] == payload


@pytest.mark.parametrize(("depth", "status"), [(61, 201), (62, 400)])
def test_the_depth_of_a_body_counts_its_lists_and_objects(
    acme: Wire, depth: int, status: int
) -> None:
    nested = "[" * depth + "1" + "]" * depth
    body = f'{{"workflowId": "conformance-identity", "inputs": {{"payload": {{"a": {nested}}}}}}}'

    assert acme.post("/v1/runs", content=body, headers=JSON).status_code == status


def test_a_body_nested_within_the_limit_is_accepted(acme: Wire) -> None:
    nested: JsonObject = {}
    for _ in range(50):
        nested = {"a": nested}

    found = acme.run("conformance-identity", {"payload": nested})

    assert found["variables"]["payload"] == nested


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("depth", [70, 500, 3000])
def test_a_definition_nested_too_deeply_is_refused(acme: Wire, depth: int) -> None:
    definition = workflow([node("a")], metadata={"deep": "HERE"})
    nested = '{"a":' * depth + "1" + "}" * depth
    body = json.dumps(definition).replace('"HERE"', nested)

    assert (
        refusal(acme.post("/v1/workflows", content=body, headers=JSON), 400)["details"]["field"]
        == "body"
    )


@pytest.mark.parametrize(
    ("number", "kept"),
    [
        ("1e308", 1e308),
        ("9007199254740993", 9007199254740993),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551615", 2**64 - 1),
        ("0.1", 0.1),
        ("1e-400", 0.0),
    ],
)
def test_any_number_that_json_allows_is_returned_unchanged(
    acme: Wire, number: str, kept: float
) -> None:
    body = f'{{"workflowId": "conformance-identity", "inputs": {{"payload": {{"n": {number}}}}}}}'
    response = acme.post("/v1/runs", content=body, headers=JSON)

    found = acme.finished(response.json()["runId"])

    assert found["variables"]["payload"]["n"] == kept


@pytest.mark.parametrize(
    "number", ["1e400", "-1e999", "1" + "0" * 30, "9" * 5000, "1e" + "9" * 100]
)
def test_a_huge_number_is_refused_or_kept_without_an_error(acme: Wire, number: str) -> None:
    body = f'{{"workflowId": "conformance-identity", "inputs": {{"payload": {{"n": {number}}}}}}}'

    response = acme.post("/v1/runs", content=body, headers=JSON)

    if response.status_code == 201:
        assert acme.finished(response.json()["runId"])["status"] == "completed"
    else:
        assert refusal(response, 400)["error"] == "validation_error"


def test_any_text_that_json_allows_is_returned_unchanged(acme: Wire) -> None:
    text = "\x00 \u0001 \u2028 \U0001f4a9 \ufffe \u202e " + "é" * 300

    found = acme.run("conformance-identity", {"payload": {text: text}}, tags=[text[:200]])

    assert found["variables"]["payload"] == {text: text}
    assert found["tags"] == [text[:200]]


def test_the_last_of_two_members_with_one_name_counts(acme: Wire) -> None:
    body = b'{"workflowId": "nowhere", "workflowId": "conformance-noop"}'

    assert acme.post("/v1/runs", content=body, headers=JSON).status_code == 201


# Paths, methods and queries


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v2/runs", "/runs/", "/v1/runs/", "/v1/nothing", "/%00", "/%ff"]
)
def test_an_unknown_path_is_not_found(acme: Wire, path: str) -> None:
    assert refusal(acme.get(path), 404)["error"] == "not_found"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_a_wrong_method_is_refused_with_the_allowed_ones(acme: Wire, operation: Operation) -> None:
    right = {o.method for o in OPERATIONS if o.path == operation.path}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - right:
        response = acme.request(method, _path(operation))

        assert refusal(response, 405)["error"] == "method_not_allowed"
        assert set(response.headers["allow"].split(", ")) == right


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "operation", [o for o in OPEN_TO_ADMINS if "{" in o.path], ids=lambda each: each.name
)
def test_an_impossible_id_is_not_found(acme: Wire, operation: Operation) -> None:
    for odd in ODD_IDS:
        response = acme.request(operation.method, _path(operation, odd))

        refusal(response, 404, *([405] if odd in MISLEADING else []))
        assert "x-evil" not in response.headers


@pytest.mark.parametrize("operation", READERS, ids=lambda each: each.name)
def test_no_query_causes_a_server_error(acme: Wire, operation: Operation) -> None:
    for parameter in operation.parameters:
        if parameter.where == "query":
            for value in ODD_VALUES:
                sent = {parameter.name: value.encode("utf-8", "surrogatepass")}
                response = acme.get(_path(operation), params=sent)
                assert response.status_code in (200, 400, 404), response.text


def test_a_query_that_is_not_text_causes_no_server_error(acme: Wire) -> None:
    for query in ("tag=%ff%fe", "tag=%ed%a0%80", "%", "=&=&&", "tag", "cursor=%00", "limit=%31"):
        assert acme.get(f"/v1/runs?{query}").status_code in (200, 400)
