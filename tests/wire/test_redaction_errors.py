"""Credential shapes in requests are masked wherever the host repeats them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.host import ACME, VIEWER, ServedHost
from tests.support.stored_files import audit_entries, stored
from tests.support.surfaces import CANARIES, leaks
from wopr.http.app import OPERATIONS
from wopr.http.operation import Operation

# One of each kind of shape: by prefix, by structure, with blanks, over several words.
SENT = {name: CANARIES[name] for name in ("openai", "aws", "jwt", "bearer", "pem", "handle")}
HEADERS = ("Accept", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID")

Request = tuple[str, str, dict[str, Any]]


def path_of(operation: Operation, value: str) -> str:
    return re.sub(r"\{[a-z_]+\}", quote(value, safe=""), operation.path)


def bodies(operation: Operation, canary: str) -> Iterator[Any]:
    """Return bodies with the credential as a name, as a value of each member, and as the whole."""
    if operation.body is None:
        return
    yield {canary: canary}
    yield canary
    if issubclass(operation.body, msgspec.Struct):
        names = [field.encode_name for field in msgspec.structs.fields(operation.body)]
        yield from ({name: canary} for name in names)
        yield dict.fromkeys(names, canary)
        yield {name: {canary: [canary]} for name in names}


def requests(operation: Operation, canary: str) -> Iterator[Request]:
    """Return requests with the credential in each place that a client can fill."""
    path = path_of(operation, canary)
    yield operation.method, path, {}
    yield operation.method, path_of(operation, "x"), {"params": {canary: canary}}
    for parameter in operation.parameters:
        if parameter.where == "query":
            yield operation.method, path_of(operation, "x"), {"params": {parameter.name: canary}}
    for body in bodies(operation, canary):
        yield operation.method, path, {"json": body}
        yield operation.method, path, {"json": body, "headers": {"Idempotency-Key": canary}}
    for name in HEADERS:
        content = "{}" if operation.body is not None else None
        yield operation.method, path, {"headers": {name: canary}, "content": content}


def said(response: httpx.Response) -> str:
    return response.text + str(response.headers)


def test_a_token_at_the_end_of_an_unknown_workflow_id_is_masked(acme: Wire) -> None:
    token = CANARIES["jwt"]

    response = acme.post("/v1/runs", {"workflowId": f"nonexistent-{token}"})

    assert response.status_code == 404
    assert not leaks(said(response), *token.split("."))


@pytest.mark.parametrize("canary", SENT.values(), ids=SENT)
def test_no_route_repeats_a_credential_in_a_refusal(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire], canary: str
) -> None:
    host = new_host("--conformance", "--log-format", "json", "--log-level", "debug")
    wire = connect(ACME, host)
    told: list[str] = []
    refusals = 0
    for operation in OPERATIONS:
        for method, path, options in requests(operation, canary):
            response = wire.http.request(method, path, **options)
            refusals += response.is_client_error
            if leaks(said(response)):
                told.append(f"{method} {operation.path} {options}: {response.text[:500]}")

    assert told == []
    assert refusals > len(OPERATIONS)
    assert not leaks(host.log())
    assert not leaks(json.dumps(audit_entries(host)))
    host.stop()
    assert not leaks(stored(host))


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_the_refusal_of_an_answer_repeats_no_credential(acme: Wire, canary: str) -> None:
    asked = [{"id": "n", "question": "How many?", "schema": {"type": "integer"}}]
    ask = node("ask", "core.clarificationGate", config={"questions": asked})
    run_id = acme.create(acme.register(workflow([ask])))
    path = f"/v1/runs/{run_id}/interrupts"

    responses = [
        acme.post(f"{path}/{quote(canary, safe='')}", {"resumeValue": 1}),
        acme.post(f"{path}/ask", {"resumeValue": {"answers": {"n": canary}}}),
        acme.post(f"{path}/ask", {"resumeValue": {"answers": {"n": [canary]}}}),
        acme.post(f"{path}/ask", {"resumeValue": {canary: 1}}),
        acme.post(f"{path}/ask", {"resumeValue": 1, canary: 1}),
        acme.post(f"{path}/ask", {"resumeValue": 1}, params={"interruptId": canary}),
    ]

    assert [each.status_code for each in responses if not each.is_client_error] == []
    assert [each.text for each in responses if leaks(said(each))] == []


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_an_mcp_client_receives_no_credential(acme: Wire, canary: str) -> None:
    calls = [
        {"name": canary, "arguments": {}},
        {"name": "conformance-identity", "arguments": {canary: canary}},
        {"name": "conformance-delay", "arguments": {"delayMs": canary}},
    ]
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }

    for method, params in (*(("tools/call", call) for call in calls), (canary, {})):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        response = acme.http.post("/mcp", json=body, headers=headers)

        assert not leaks(said(response)), response.text


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_a_console_page_repeats_no_credential(acme: Wire, canary: str) -> None:
    place = quote(canary, safe="")
    for path in (f"/{place}", f"/runs/{place}", f"/v1/{place}", f"/static/{place}"):
        for accept in ("text/html", "application/json"):
            response = acme.http.get(path, headers={"Accept": accept})

            assert not leaks(response.text), response.text


def test_the_audit_log_contains_the_refusal_without_the_credential(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance")
    viewer = connect(VIEWER, host)
    for canary in CANARIES.values():
        viewer.post(f"/v1/runs/{quote(canary, safe='')}/cancel")

    denied = [entry for entry in audit_entries(host) if entry["outcome"] == "denied"]

    assert any("[REDACTED]" in entry["resource"] for entry in denied)
    assert not leaks(json.dumps(denied))


@pytest.mark.parametrize("place", ["limit", "since"])
def test_no_part_of_a_signed_token_is_left_where_a_long_value_is_cut(
    acme: Wire, place: str
) -> None:
    header, claims, _ = CANARIES["jwt"].split(".")

    response = acme.get("/v1/runs", params={place: CANARIES["jwt"]})

    assert response.status_code == 400
    assert place in response.json()["message"]
    assert claims not in response.text
    assert header not in response.text
