"""A registered value is a secret of its tenant: others learn neither its name nor its existence."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from mcp import MCPError

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.eventually import eventually
from tests.support.host import ACME, GLOBEX, ServedHost
from tests.support.kahn import KahnRun, push_run
from tests.support.mcp_clients import connected
from tests.support.surfaces import surfaces
from wopr.agents.models.provider_settings import key_names
from wopr.security.credential_names import variable_of

# Not a credential shape, so that only its registration makes it a secret.
VALUES = {"acme": "winter oak river 17", "globex": "summer elm valley 23"}
KEYS = {"acme": ACME, "globex": GLOBEX}
OPERATOR_S = "operator key for all models"


@pytest.fixture
def host(new_host: Callable[..., ServedHost]) -> ServedHost:
    """Start a host with one value of each tenant, and one of the operator."""
    secrets = {variable_of(tenant, f"{tenant}-vault"): value for tenant, value in VALUES.items()}
    options = ("--conformance", "--log-format", "json", "--log-level", "debug")
    return new_host(*options, **secrets, **{key_names("openai")[0]: OPERATOR_S})


def everything(wire: Wire, host: ServedHost, key: str, text: str) -> str:
    """Write a text everywhere that a tenant can, and return what the tenant reads."""
    run = wire.run("conformance-identity", {"payload": {"text": text, text: [text]}}, tags=[text])
    run_id = str(run["runId"])
    answers = [
        wire.post(f"/v1/runs/{run_id}/annotations", {"signal": {"kind": "flag"}, "note": text}),
        wire.get(f"/v1/runs/{run_id}/annotations"),
        wire.get(f"/v1/runs/{run_id}/debug-bundle"),
        wire.post("/v1/runs", {"workflowId": text}),
        wire.get(f"/v1/runs/{text}"),
        wire.post(f"/v1/runs/{run_id}/cancel", {"reason": text}),
        wire.get("/v1/audit"),
    ]
    story = KahnRun()
    lines = (
        story.start(task=text, model=text),
        story.move(0, "thinking", "converged", reason=text),
        story.end(note=text),
    )
    observed = push_run(wire, *lines)
    with Person(host.url) as person:
        person.sign_in(key)
        answers += [person.get(f"/runs/{run_id}"), person.get("/runs", params={"tag": text})]
        answers += [person.get(f"/runs/{observed}")]
    texts = [surfaces(wire, run_id), surfaces(wire, observed), *(a.text for a in answers)]
    return "\n".join([*texts, anyio.run(_refused_over_mcp, host, key, text)])


async def _refused_over_mcp(host: ServedHost, key: str, tool: str) -> str:
    """Return the response to an MCP client that calls an unknown tool."""
    async with connected(host.url, key) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool(tool, {})
    assert "there is no tool" in refused.value.error.message
    return refused.value.error.model_dump_json()


@pytest.mark.parametrize(("owner", "other"), [("acme", "globex"), ("globex", "acme")])
def test_another_tenant_s_value_is_plain_text_and_one_s_own_is_masked_by_its_name(
    host: ServedHost, connect: Callable[..., Wire], owner: str, other: str
) -> None:
    value, mark = VALUES[owner], f"[REDACTED:{owner}-vault]"

    own = everything(connect(KEYS[owner], host), host, KEYS[owner], value)
    foreign = everything(connect(KEYS[other], host), host, KEYS[other], value)

    assert value not in own
    assert mark in own
    assert f"{owner}-vault" not in foreign
    assert "[REDACTED" not in foreign
    assert value in foreign


def test_a_value_of_the_operator_is_masked_for_every_tenant_without_a_name(
    host: ServedHost, connect: Callable[..., Wire]
) -> None:
    for key in KEYS.values():
        seen = everything(connect(key, host), host, key, OPERATOR_S)

        assert OPERATOR_S not in seen
        assert "[REDACTED]" in seen
        assert "[REDACTED:" not in seen


def test_the_log_of_the_process_masks_the_values_of_all_tenants_without_a_name(
    host: ServedHost, connect: Callable[..., Wire]
) -> None:
    for key in KEYS.values():
        everything(connect(key, host), host, key, " and ".join((*VALUES.values(), OPERATOR_S)))

    eventually(lambda: "getAudit" in host.log() or "/v1/audit" in host.log())
    assert not [value for value in (*VALUES.values(), OPERATOR_S) if value in host.log()]
    assert "-vault" not in host.log()
