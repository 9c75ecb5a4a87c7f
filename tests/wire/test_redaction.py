from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, variable, workflow
from tests.support.host import ACME, ServedHost
from tests.support.stored_files import stored
from tests.support.surfaces import CANARIES, leaks, surfaces
from wopr.protocol.documents import JsonObject


def test_secrets_placed_anywhere_in_a_run_appear_nowhere(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host("--conformance", "--log-format", "json", "--log-level", "debug")
    wire = connect(ACME, host)
    planted: JsonObject = {
        "plain": CANARIES,
        "inside text": [f"the key is {canary}, keep it" for canary in CANARIES.values()],
        "as a name": {canary: 1 for canary in CANARIES.values()},
        "in a document": json.dumps(CANARIES),
    }
    runs = [
        wire.create(
            "conformance-identity",
            {"payload": planted},
            tags=[f"tag {canary}" for canary in CANARIES.values()],
            metadata={"note": list(CANARIES.values())},
            configurable={"acme.note": CANARIES},
        ),
        wire.create(
            wire.register(workflow([node("a")])), {canary: canary for canary in CANARIES.values()}
        ),
        wire.create(
            "conformance-stream-text",
            configurable={
                "mockProvider": {
                    "id": "stream-text",
                    "config": {"tokens": list(CANARIES.values()), "model": CANARIES["openai"]},
                }
            },
        ),
        wire.create(
            "conformance-stream-text",
            configurable={
                "mockProvider": {
                    "id": "error",
                    "config": {"message": f"refused {CANARIES['aws']}", "code": CANARIES["github"]},
                }
            },
        ),
    ]
    for run_id in runs:
        wire.finished(run_id)
    for canary in CANARIES.values():
        key = {"Idempotency-Key": f"missing {canary}"}
        wire.get(f"/v1/runs/{canary}", params={"tag": canary})
        wire.post("/v1/runs", {"workflowId": canary}, headers=key)
        wire.post("/v1/runs:bulk-cancel", {"runIds": [canary]}, headers=key)
        wire.post("/v1/workflows", workflow([node("a", canary, notes=canary)]), headers=key)
    cancelled = wire.create("conformance-cancellable")
    wire.post(f"/v1/runs/{cancelled}/cancel", {"reason": " ".join(CANARIES.values())})
    paused = wire.create("conformance-cancellable")
    body = {"reason": " ".join(CANARIES.values()), "drainPolicy": "immediate"}
    wire.post(f"/v1/runs/{paused}:pause", body)

    seen = "\n".join(surfaces(wire, run_id) for run_id in (*runs, cancelled))
    seen += wire.get(f"/v1/runs/{paused}").text
    seen += wire.get(f"/v1/runs/{paused}/events", headers={"Accept": "application/json"}).text
    wire.post(f"/v1/runs/{paused}/cancel")

    assert not leaks(seen)
    assert not leaks(host.log())
    host.stop()
    assert not leaks(stored(host))
    assert wire.recorder.seen > 50


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_a_masked_value_does_not_change_the_rest_of_its_text(acme: Wire, canary: str) -> None:
    found = acme.run("conformance-identity", {"payload": {"text": f"before {canary} after"}})

    text = found["variables"]["payload"]["text"]
    assert text.startswith("before ")
    assert text.endswith(" after")
    assert "[REDACTED]" in text


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_no_error_repeats_a_credential(acme: Wire, canary: str) -> None:
    sent = canary.replace(" ", "%20")
    answers = [
        acme.get(f"/v1/runs/{sent}"),
        acme.get(f"/v1/workflows/{sent}"),
        acme.get(f"/v1/{sent}"),
        acme.get("/v1/runs", params={"since": canary}),
        acme.get("/v1/runs", params={"limit": canary}),
        acme.get("/v1/runs/x/events", params={"streamMode": canary}),
        acme.post("/v1/runs", {"workflowId": canary}),
        acme.post("/v1/runs", {"workflowId": "conformance-noop", canary: 1}),
        acme.post("/v1/runs", {"workflowId": "conformance-delay", "inputs": {"delayMs": canary}}),
        acme.post(
            "/v1/runs", {"workflowId": "conformance-noop", "configurable": {"model": [canary]}}
        ),
        acme.post("/v1/runs:bulk-cancel", {"runIds": [canary]}),
        acme.post("/v1/workflows", workflow([node("a", canary)])),
        acme.post("/v1/workflows:validate", workflow([node("a", canary)])),
        acme.post("/v1/runs", content=canary, headers={"Content-Type": canary}),
    ]

    for answer in answers:
        assert not leaks(answer.text + str(answer.headers)), answer.text


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_a_definition_with_a_credential_is_refused_with_its_place(acme: Wire, canary: str) -> None:
    call = {"url": "https://example.com", "headers": {"Authorization": canary}}
    definition = workflow(
        [
            node("call", "wopr.http.request", config=call),
            node("fail", "core.fail", config={"message": f"no {canary}"}),
            node("in", "core.identity", inputs={"x": {"type": "static", "value": {canary: 1}}}),
        ],
        variables=[variable("v", defaultValue=canary)],
        metadata={"note": canary},
    )

    response = acme.post("/v1/workflows", definition)

    assert response.status_code == 400
    assert [fault["path"] for fault in response.json()["details"]["errors"]] == [
        "nodes.0.config.headers.Authorization",
        "nodes.1.config.message",
        "nodes.2.inputs.x.value",
        "variables.0.defaultValue",
        "metadata.note",
    ]
    assert not leaks(response.text)


def test_a_reference_to_a_credential_is_allowed_in_a_definition(acme: Wire) -> None:
    definition = workflow([node("a", credentialsRef=CANARIES["handle"])])

    assert acme.post("/v1/workflows", definition).status_code == 201
