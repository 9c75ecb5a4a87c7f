from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.models.conftest import NewHost, variables
from tests.models.model_runs import OUTCOMES, error_of, model_node, payloads, started
from tests.models.model_server import ModelServer
from tests.models.openai_server import OpenAiServer
from tests.models.turns import CallTools, Fail, Say
from tests.support.client import Wire
from tests.support.definitions import fresh, from_variable, variable
from tests.support.fragile_host import FragileHost
from tests.support.host import WOPR, environment
from wopr.protocol.documents import JsonObject

# Not a known form of a key, so that only its registration masks it.
CANARY = "canary.of.acme.which.nobody.may.read"
OTHER = "canary.of.globex.which.nobody.may.read"


def keep(host: FragileHost, name: str, value: str, *options: str) -> None:
    """Store a credential with the operators' command."""
    done = subprocess.run(
        [WOPR, "secrets", "set", name, *options],
        env=environment(host.data_dir, {}),
        input=value,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert value not in done.stdout + done.stderr


def ran_with(wire: Wire, model: str, ref: str, **config: object) -> list[JsonObject]:
    run_id = started(wire, [model_node("chat", model, dict(config), credentialsRef=ref)])
    return wire.events_until(run_id, *OUTCOMES)


def test_a_tenant_s_own_key_is_sent_to_the_provider(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    keep(host, "mine", CANARY, "--tenant", "acme")
    model = server.script([Say("Hello.")])

    ran_with(host.wire, model, "mine")

    assert server.authorizations[model] == [f"Bearer {CANARY}"]


@pytest.mark.parametrize("source", ["env", "file"])
def test_a_key_is_found_in_the_environment_or_in_a_file(
    new_host: NewHost, server: OpenAiServer, tmp_path: Path, source: str
) -> None:
    (tmp_path / "secrets" / "acme").mkdir(parents=True)
    (tmp_path / "secrets" / "acme" / "my-key").write_text(f"{CANARY}\n")
    where = {
        "env": {"WOPR_SECRET_acme__my_2Dkey": CANARY},
        "file": {"WOPR_SECRETS_DIR": str(tmp_path / "secrets")},
    }
    host = new_host(**where[source])
    model = server.script([Say("Hello.")])

    ran_with(host.wire, model, f"{source}:my-key")

    assert server.authorizations[model] == [f"Bearer {CANARY}"]


def test_no_tenant_can_use_another_s_credential(
    new_host: NewHost, server: OpenAiServer, tmp_path: Path
) -> None:
    (tmp_path / "secrets" / "globex").mkdir(parents=True)
    (tmp_path / "secrets" / "globex" / "filed").write_text(OTHER)
    host = new_host(WOPR_SECRET_globex__named=OTHER, WOPR_SECRETS_DIR=str(tmp_path / "secrets"))
    keep(host, "kept", OTHER, "--tenant", "globex")
    refs = ("kept", "named", "filed", "file:../globex/filed", "env:WOPR_HOST_KEY", "globex/kept")

    for ref in refs:
        model = server.script([Say("Never.")])
        assert error_of(ran_with(host.wire, model, ref)) == "credential_not_found"
        assert server.request_count(model) == 0


def test_a_credential_is_sent_only_to_its_audience(new_host: NewHost, server: OpenAiServer) -> None:
    host = new_host()
    keep(host, "narrow", CANARY, "--tenant", "acme", "--for", "openai")
    model = server.script([Say("Never.")])

    log = ran_with(host.wire, model, "narrow")

    assert error_of(log) == "credential_forbidden"
    assert server.request_count(model) == 0


def _tool(server: OpenAiServer, ref: str) -> JsonObject:
    path = f"/{fresh('secret')}"
    server.service.answers[path] = (200, "fine")
    return {
        "name": "svc:call",
        "description": "Call the service.",
        "url": f"{server.url}{path}",
        "credentialsRef": ref,
    }


def test_a_workflow_cannot_send_a_credential_to_another_host(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host(WOPR_SECRET_acme__loose=CANARY)
    keep(host, "kept", CANARY, "--tenant", "acme")
    for ref in ("kept", "loose"):
        tool = _tool(server, ref)
        model = server.script([CallTools((("call", {}),)), Say("No.")])

        run_id = started(host.wire, [model_node("agent", model, {"httpTools": [tool]})])

        log = host.wire.events_until(run_id, *OUTCOMES)
        [returned] = payloads(log, "agent.toolReturned")
        assert returned["error"]["code"].startswith("credential_")
    assert CANARY not in str(server.service.requests)


def test_an_http_tool_sends_a_credential_to_its_audience(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    keep(host, "service", CANARY, "--tenant", "acme", "--for", "127.0.0.1")
    tool = _tool(server, "service")
    model = server.script([CallTools((("call", {}),)), Say("Fine.")])

    run_id = started(host.wire, [model_node("agent", model, {"httpTools": [tool]})])
    host.wire.finished(run_id)

    path = tool["url"].removeprefix(server.url)
    [request] = [each for each in server.service.requests if each["path"] == path]
    assert request["headers"]["authorization"] == f"Bearer {CANARY}"


def test_tenants_that_must_bring_keys_cannot_use_the_operator_s(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host(WOPR_REQUIRE_OWN_KEYS="1", LOCAL_API_KEY=OTHER)
    model = server.script([Say("Never.")])

    run_id = started(host.wire, [model_node("chat", model)])

    log = host.wire.events_until(run_id, *OUTCOMES)
    assert error_of(log) == "provider_policy_denied"
    assert server.request_count(model) == 0


def test_only_the_models_that_the_operator_allows_are_called(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host(WOPR_MODELS_ALLOWED="local:gpt-*")
    model = server.script([Say("Never.")])

    run_id = started(host.wire, [model_node("chat", model)])

    log = host.wire.events_until(run_id, *OUTCOMES)
    assert error_of(log) == "provider_policy_denied"
    assert server.request_count(model) == 0


def test_a_credential_s_value_appears_only_in_the_request_that_uses_it(
    new_host: NewHost, server: OpenAiServer, any_server: ModelServer
) -> None:
    provider = any_server.provider
    own = variables(any_server) | {f"{provider.upper()}_API_KEY": OTHER}
    host = new_host("--log-level", "debug", "--log-format", "json", **own)
    keep(host, "mine", CANARY, "--tenant", "acme", "--for", provider, "--for", "127.0.0.1")
    tool = _tool(server, "mine")
    server.service.answers[tool["url"].removeprefix(server.url)] = (200, f"you sent {CANARY}")
    leak = f"keys: {CANARY} {OTHER}"
    # Everything that receives the keys repeats them: the provider's errors, the model, the tool.
    turns = [
        Fail(500, message=leak),
        CallTools((("call", {"note": CANARY}),), text=leak),
        Say(leak, pieces=(leak[:20], leak[20:33], leak[33:]), reasoning=leak),
    ]
    model = any_server.script(turns)
    agent = model_node("agent", model, {"httpTools": [tool]}, provider, credentialsRef="mine")
    plain = any_server.script([Say(leak), Fail(400, message=leak)])
    nodes = [
        agent,
        *(model_node("chat", plain, {}, provider, id=name) for name in ("second", "third")),
    ]
    wire = host.wire

    run_id = started(wire, nodes)
    wire.events_until(run_id, *OUTCOMES)
    fork = wire.post(f"/v1/runs/{run_id}:fork", {"mode": "replay"}).json()["runId"]
    wire.events_until(fork, *OUTCOMES)

    assert any_server.keys(model) == [CANARY] * 3
    assert any_server.keys(plain) == [OTHER] * 2
    answers = [wire.get(path) for path in _surfaces(run_id, fork)]
    assert {answer.status_code for answer in answers} == {200}
    metrics = wire.metrics()
    assert "wopr_runs_created_total" in metrics
    host.stop()
    files = [path for path in host.data_dir.rglob("*") if path.is_file()]
    for secret in (CANARY, OTHER):
        assert not [str(answer.url) for answer in answers if secret in answer.text]
        assert secret not in metrics
        assert not [path.name for path in files if secret.encode() in path.read_bytes()]


def _surfaces(run_id: str, fork: str) -> list[str]:
    """Return everything where a reader could find the results of a run."""
    return [
        *(f"/v1/runs/{each}" for each in (run_id, fork)),
        *(f"/v1/runs/{each}/events/poll" for each in (run_id, fork)),
        f"/v1/runs/{run_id}/debug-bundle",
        f"/v1/runs/{run_id}:diff?against={fork}",
        "/v1/runs",
        "/v1/export/runs",
        "/v1/audit",
        "/.well-known/openwop",
    ]


def test_each_use_of_a_credential_is_audited_by_name(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    keep(host, "mine", CANARY, "--tenant", "acme")
    model = server.script([Say("Hello.")])

    ran_with(host.wire, model, "mine")

    entries = host.wire.get("/v1/audit").text
    assert "secret.set" in entries
    assert "secret.use" in entries


def test_values_hidden_in_a_run_stay_hidden_when_a_model_repeats_them(
    new_host: NewHost, server: OpenAiServer
) -> None:
    host = new_host()
    hidden = "the patient's name is Ada"
    turn = Say(f"So {hidden}.", pieces=("So the pati", "ent's name ", "is Ada."))
    first, second = server.script([turn]), server.script([Say("Good.")])
    said = {"type": "expression", "expression": "nodes.first.text"}
    nodes = [
        model_node("chat", first, id="first", inputs={"note": from_variable("note")}),
        model_node("chat", second, id="second", inputs={"said": said}),
    ]

    run_id = started(
        host.wire,
        nodes,
        definition={"variables": [variable("note", sensitive=True)]},
        inputs={"note": hidden},
    )
    log = host.wire.events_until(run_id, *OUTCOMES)

    assert hidden in server.prompt(first)
    assert hidden in server.prompt(second)
    assert hidden not in str(log)
    host.stop()
    files = [path for path in host.data_dir.rglob("*") if path.is_file()]
    assert not [path.name for path in files if hidden.encode() in path.read_bytes()]
