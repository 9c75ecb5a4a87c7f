from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.wire.client import Wire
from tests.wire.definitions import fresh, node, workflow
from tests.wire.host import ACME, ServedHost, served
from wopr.http.app import OPERATIONS
from wopr.http.operation import Operation
from wopr.protocol.documents import JsonObject

WRITERS = [operation for operation in OPERATIONS if operation.body is not None]
READERS = [o for o in OPERATIONS if o.method == "GET" and o.scope is not None]
JSON = {"Content-Type": "application/json"}
SMALL = 4096

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
# Ids that make another path of it.
MISLEADING = {"..", "..%2f..%2fetc%2fpasswd", "a:b"}


@pytest.fixture
def unchanged(acme: Wire) -> Iterator[None]:
    """Whatever the test sends, no run and no workflow comes of it."""
    newest = acme.document("/v1/runs", params={"limit": 1})["items"]
    own = [w for w in _workflows(acme) if not w["isShared"]]
    yield
    assert acme.document("/v1/runs", params={"limit": 1})["items"] == newest
    assert [w for w in _workflows(acme) if not w["isShared"]] == own


def _workflows(wire: Wire) -> list[JsonObject]:
    found: list[JsonObject] = wire.document("/v1/workflows", params={"limit": 200})["items"]
    return found


def _path(operation: Operation, name: str = "nothing") -> str:
    return re.sub(r"\{\w+(:path)?\}", name, operation.path)


def _refusal(response: httpx.Response, *statuses: int) -> JsonObject:
    """The envelope of a refusal."""
    assert response.status_code in statuses, (response.status_code, response.text)
    assert response.headers["content-type"] == "application/json"
    envelope: JsonObject = response.json()
    return envelope


# Bodies


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_a_body_that_is_not_json_is_refused(acme: Wire, body: bytes) -> None:
    envelope = _refusal(acme.post("/v1/runs", content=body, headers=JSON), 400)

    assert envelope["error"] == "validation_error"
    assert envelope["details"]["field"]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("operation", WRITERS, ids=lambda each: each.name)
def test_no_operation_takes_what_is_not_an_object(acme: Wire, operation: Operation) -> None:
    for body in (*NOT_AN_OBJECT, NOT_JSON["half an object"], NOT_JSON["invalid utf-8"]):
        response = acme.post(_path(operation), content=body, headers=JSON)

        # A thing that is not there is not there, whatever is said about it.
        if "{" in operation.path:
            _refusal(response, 404)
        elif operation.name == "validateWorkflow" and response.status_code == 200:
            assert response.json()["valid"] is False
        else:
            assert _refusal(response, 400)["details"]["field"] is not None


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("operation", WRITERS, ids=lambda each: each.name)
@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/xml", "multipart/form-data", "x"]
)
def test_no_operation_takes_another_media_type(
    acme: Wire, operation: Operation, media_type: str
) -> None:
    response = acme.post(_path(operation), content=b"{}", headers={"Content-Type": media_type})

    envelope = _refusal(response, 404 if "{" in operation.path else 415)
    unknown = ("not_found", "interrupt_not_found")
    assert envelope["error"] in ("unsupported_media_type", *unknown)


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "application/ld+json", "APPLICATION/JSON"]
)
def test_json_under_its_other_names_is_taken(acme: Wire, media_type: str) -> None:
    body = json.dumps({"workflowId": "conformance-noop"})

    response = acme.post("/v1/runs", content=body, headers={"Content-Type": media_type})

    assert response.status_code == 201


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("depth", [70, 500, 900, 1100, 3000])
@pytest.mark.parametrize("member", ["inputs", "configurable", "metadata"])
def test_a_body_nested_too_deep_is_refused(acme: Wire, depth: int, member: str) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    body = f'{{"workflowId": "conformance-noop", "{member}": {nested}}}'

    envelope = _refusal(acme.post("/v1/runs", content=body, headers=JSON), 400)

    assert envelope["error"] == "validation_error"


def test_a_body_nested_deep_but_not_too_deep_is_taken(acme: Wire) -> None:
    nested: JsonObject = {}
    for _ in range(50):
        nested = {"a": nested}

    found = acme.run("conformance-identity", {"payload": nested})

    assert found["variables"]["payload"] == nested


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("depth", [70, 500, 3000])
def test_a_definition_nested_too_deep_is_refused(acme: Wire, depth: int) -> None:
    definition = workflow([node("a")], metadata={"deep": "HERE"})
    nested = '{"a":' * depth + "1" + "}" * depth
    body = json.dumps(definition).replace('"HERE"', nested)

    assert (
        _refusal(acme.post("/v1/workflows", content=body, headers=JSON), 400)["details"]["field"]
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
def test_a_number_that_json_can_hold_comes_back_as_it_went(
    acme: Wire, number: str, kept: float
) -> None:
    body = f'{{"workflowId": "conformance-identity", "inputs": {{"payload": {{"n": {number}}}}}}}'
    response = acme.post("/v1/runs", content=body, headers=JSON)

    found = acme.finished(response.json()["runId"])

    assert found["variables"]["payload"]["n"] == kept


@pytest.mark.parametrize(
    "number", ["1e400", "-1e999", "1" + "0" * 30, "9" * 5000, "1e" + "9" * 100]
)
def test_a_number_too_large_is_refused_or_kept_but_never_breaks_the_host(
    acme: Wire, number: str
) -> None:
    body = f'{{"workflowId": "conformance-identity", "inputs": {{"payload": {{"n": {number}}}}}}}'

    response = acme.post("/v1/runs", content=body, headers=JSON)

    if response.status_code == 201:
        assert acme.finished(response.json()["runId"])["status"] == "completed"
    else:
        assert _refusal(response, 400)["error"] == "validation_error"


def test_any_text_that_json_can_hold_comes_back_as_it_went(acme: Wire) -> None:
    text = "\x00 \u0001 \u2028 \U0001f4a9 \ufffe \u202e " + "é" * 300

    found = acme.run("conformance-identity", {"payload": {text: text}}, tags=[text[:200]])

    assert found["variables"]["payload"] == {text: text}
    assert found["tags"] == [text[:200]]


def test_a_member_named_twice_counts_once(acme: Wire) -> None:
    body = b'{"workflowId": "nowhere", "workflowId": "conformance-noop"}'

    assert acme.post("/v1/runs", content=body, headers=JSON).status_code == 201


# Sizes


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHost]:
    """A host that takes small bodies only."""
    data_dir = tmp_path_factory.mktemp("small")
    with served(data_dir, "--conformance", WOPR_MAX_BODY_BYTES=str(SMALL)) as running:
        yield running


def _body(size: int) -> bytes:
    """A create request of exactly this many bytes."""
    empty = len(json.dumps({"workflowId": "conformance-noop", "inputs": {"pad": ""}}))
    padded = {"workflowId": "conformance-noop", "inputs": {"pad": "x" * (size - empty)}}
    return json.dumps(padded).encode()


def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not(
    small: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, small)

    fits = wire.post("/v1/runs", content=_body(SMALL), headers=JSON)
    over = wire.post("/v1/runs", content=_body(SMALL + 1), headers=JSON)

    assert fits.status_code == 201
    assert _refusal(over, 413)["error"] == "payload_too_large"
    assert over.json()["details"] == {"field": "body", "limit": SMALL}
    advertised = wire.document("/.well-known/openwop")["limits"]["maxRequestBodyBytes"]
    assert advertised == SMALL


def test_a_body_without_a_length_is_refused_as_soon_as_it_is_too_large(
    small: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, small)

    def chunks() -> Iterator[bytes]:
        for start in range(0, 3 * SMALL, 512):
            yield _body(3 * SMALL)[start : start + 512]

    response = wire.post("/v1/runs", content=chunks(), headers=JSON)

    assert response.request.headers["transfer-encoding"] == "chunked"
    assert _refusal(response, 413)["error"] == "payload_too_large"


def test_a_body_in_pieces_is_taken_whole(small: ServedHost, connect: Callable[..., Wire]) -> None:
    whole = _body(SMALL)

    def chunks() -> Iterator[bytes]:
        yield from (whole[start : start + 7] for start in range(0, len(whole), 7))

    response = connect(ACME, small).post("/v1/runs", content=chunks(), headers=JSON)

    assert response.status_code == 201


def test_a_length_that_promises_too_much_is_refused_before_the_body_comes(
    small: ServedHost,
) -> None:
    head = _head(small, f"Content-Length: {10**12}")

    with socket.create_connection(("127.0.0.1", small.port), timeout=10) as connection:
        connection.sendall(head)
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 413")


def _head(host: ServedHost, *lines: str) -> bytes:
    fixed = [
        "POST /v1/runs HTTP/1.1",
        f"Host: 127.0.0.1:{host.port}",
        f"Authorization: Bearer {ACME}",
        "Content-Type: application/json",
    ]
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


@pytest.mark.parametrize("framing", ["Content-Length: 500", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("key", [None, "Idempotency-Key: truncated"])
def test_an_upload_that_breaks_off_leaves_nothing_behind(
    small: ServedHost, connect: Callable[..., Wire], framing: str, key: str | None
) -> None:
    wire = connect(ACME, small)
    before = wire.document("/v1/runs")
    part = b'{"workflowId": "conformance-noop"'
    sent = part if "Length" in framing else b"%x\r\n%b\r\n" % (len(part), part)

    with socket.create_connection(("127.0.0.1", small.port), timeout=10) as connection:
        connection.sendall(_head(small, framing, *([] if key is None else [key])) + sent)

    assert wire.document("/v1/runs") == before
    again = wire.post(
        "/v1/runs", {"workflowId": "conformance-noop"}, headers={"Idempotency-Key": fresh()}
    )
    assert again.status_code == 201
    assert "Traceback" not in small.log()


def test_a_reader_that_leaves_in_the_middle_harms_nobody(
    small: ServedHost, connect: Callable[..., Wire]
) -> None:
    wire = connect(ACME, small)
    run_id = wire.create("conformance-cancellable")
    head = (
        f"GET /v1/runs/{run_id}/events?streamMode=debug HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {ACME}\r\n\r\n"
    )

    for _ in range(5):
        with socket.create_connection(("127.0.0.1", small.port), timeout=10) as connection:
            connection.sendall(head.encode())
            connection.recv(100)

    wire.post(f"/v1/runs/{run_id}/cancel")
    assert wire.finished(run_id)["status"] == "cancelled"
    assert "Traceback" not in small.log()


# Paths, methods and queries


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v2/runs", "/runs/", "/v1/runs/", "/v1/nothing", "/%00", "/%ff"]
)
def test_an_unknown_path_is_not_found(acme: Wire, path: str) -> None:
    assert _refusal(acme.get(path), 404)["error"] == "not_found"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_a_wrong_method_is_refused_with_those_that_are_right(
    acme: Wire, operation: Operation
) -> None:
    right = {o.method for o in OPERATIONS if o.path == operation.path}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - right:
        response = acme.request(method, _path(operation))

        assert _refusal(response, 405)["error"] == "method_not_allowed"
        assert set(response.headers["allow"].split(", ")) == right


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "operation", [o for o in OPERATIONS if "{" in o.path], ids=lambda each: each.name
)
def test_an_id_that_nothing_can_have_is_not_found(acme: Wire, operation: Operation) -> None:
    for odd in ODD_IDS:
        response = acme.request(operation.method, _path(operation, odd))

        _refusal(response, 404, *([405] if odd in MISLEADING else []))
        assert "x-evil" not in response.headers


@pytest.mark.parametrize("operation", READERS, ids=lambda each: each.name)
def test_no_query_breaks_a_read(acme: Wire, operation: Operation) -> None:
    for parameter in operation.parameters:
        if parameter.where == "query":
            for value in ODD_VALUES:
                sent = {parameter.name: value.encode("utf-8", "surrogatepass")}
                response = acme.get(_path(operation), params=sent)
                assert response.status_code in (200, 400, 404), response.text


def test_a_query_that_is_no_text_does_not_break_a_read(acme: Wire) -> None:
    for query in ("tag=%ff%fe", "tag=%ed%a0%80", "%", "=&=&&", "tag", "cursor=%00", "limit=%31"):
        assert acme.get(f"/v1/runs?{query}").status_code in (200, 400)
