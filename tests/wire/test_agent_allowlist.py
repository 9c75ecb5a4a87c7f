from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.agent_definitions import agent_events, agent_name, mock, only_event, scripted
from tests.support.client import Wire
from tests.support.host import ACME, ServedHost
from wopr.protocol.documents import Json, JsonObject

PROBE = "/v1/host/sample/toolhooks/invoke"


# The allowlist


def manifest(tools: list[str] | None) -> JsonObject:
    listed = {} if tools is None else {"toolAllowlist": tools}
    return {
        "agentId": f"local.acme.a{agent_name()[-12:]}",
        "persona": "Worker",
        "modelClass": "general",
        "systemPrompt": "Work.",
        **listed,
    }


@pytest.mark.parametrize(
    ("tools", "is_allowed"),
    [(["openwop:echo"], True), (["openwop:other"], False), ([], False), (None, False)],
    ids=["listed", "not listed", "empty", "no list"],
)
def test_an_agent_calls_only_the_tools_that_its_manifest_lists(
    acme: Wire, tools: list[str] | None, is_allowed: bool
) -> None:
    agent = manifest(tools)
    assert acme.post("/v1/agents", agent).status_code == 201
    tool = {"toolId": "openwop:echo", "result": 1}
    script = mock("actor", {"agentId": agent["agentId"]}, mockToolCalls=[tool])
    run_id = acme.create(acme.register(scripted([script])))
    acme.finished(run_id)

    log = acme.log(run_id)

    assert bool(agent_events(log)) is is_allowed
    if not is_allowed:
        line = only_event(log, "log.appended")["payload"]
        assert line["level"] == "warn"
        assert line["fields"] == {
            "agentId": agent["agentId"],
            "toolName": "openwop:echo",
            "status": "forbidden",
        }


def test_a_missing_pinned_version_may_call_nothing(acme: Wire) -> None:
    agent = manifest(["openwop:echo"])
    assert acme.post("/v1/agents", agent).status_code == 201
    pin = {"agentId": agent["agentId"], "version": "9.9.9"}
    tool = {"toolId": "openwop:echo", "result": 1}
    run_id = acme.create(acme.register(scripted([mock("actor", pin, mockToolCalls=[tool])])))
    acme.finished(run_id)

    assert agent_events(acme.log(run_id)) == []


# The seam


def probed(wire: Wire, **body: Json) -> JsonObject:
    response = wire.post(PROBE, {"principal": "nobody", "toolName": "db.write", **body})
    assert response.status_code == 200, response.text
    found: JsonObject = response.json()
    return found


@pytest.mark.parametrize(
    ("args", "digest"),
    [
        ({}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        (
            {"q": "openwop"},
            "9458af8c77ede919beb4dd201de70ea7909225488c9e925190a9b4e585cb9d6f",
        ),
    ],
)
def test_the_seam_hashes_arguments_as_the_published_vectors_do(
    acme: Wire, args: Json, digest: str
) -> None:
    found = probed(acme, args=args)

    assert found["toolCalled"] == {
        "argsHash": digest,
        "principal": "nobody",
        "transport": "native",
    }
    assert found["toolReturned"] == {"status": "ok", "durationMs": 0}


def test_the_seam_denies_a_principal_without_the_scope(acme: Wire) -> None:
    assert probed(acme, requiredScopes=["db:write"])["toolReturned"] == {"status": "forbidden"}
    granted = probed(acme, principal="env-1", requiredScopes=["runs:read"])
    assert granted["toolReturned"]["status"] == "ok"


def test_the_seam_simulates_a_spent_limit(acme: Wire) -> None:
    found = probed(acme, simulateRateLimitExhausted=True)

    assert found["toolReturned"] == {"status": "rate_limited"}


def test_a_host_without_conformance_has_no_seam(new_host: Callable[..., ServedHost]) -> None:
    host = new_host()
    with Wire(host.url, ACME) as opened:
        response = opened.post(PROBE, {"principal": "nobody", "toolName": "db.write"})

    assert response.status_code == 404
