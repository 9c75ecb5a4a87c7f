"""The daily model tokens of a tenant: framework calls count, and are refused beyond the quota."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.script import IN_TOKENS, OUT_TOKENS, TRACE, traces
from tests.adapters.test_adapter_kill import APPS, HERE, calls
from tests.support.fragile_host import FragileHost
from wopr.protocol.documents import JsonObject

EACH_CALL = IN_TOKENS + OUT_TOKENS
QUOTA = EACH_CALL + 1


@pytest.fixture
def host(desk: str, tmp_path: Path, trace: Path) -> Iterator[FragileHost]:
    variables = {
        TRACE: str(trace),
        "OPENAI_API_KEY": "",
        "PYTHONPATH": str(HERE.parents[1]),
        "WOPR_QUOTA_MODEL_TOKENS_PER_DAY": str(QUOTA),
    }
    app = str(HERE / APPS.get(desk, "graph_desk.py"))
    running = FragileHost(tmp_path / "host", ("--app", app), variables)
    running.start()
    yield running
    running.stop()


def used_tokens(host: FragileHost) -> int:
    quotas: list[JsonObject] = host.wire.document("/v1/usage")["quotas"]
    [found] = [each["current"] for each in quotas if each["quota"] == "modelTokensPerDay"]
    return int(found)


# The graph "threads" calls its model in synchronous code.
@pytest.mark.parametrize("desk", [*APPS, "threads"])
def test_a_framework_makes_no_model_call_when_the_daily_token_quota_is_used_up(
    host: FragileHost, desk: str
) -> None:
    run_id = host.wire.create(f"desk-{desk}", {"text": "Please refund A-17"})
    host.wire.events_until(run_id, "approval.requested")
    assert used_tokens(host) == 2 * EACH_CALL

    body = {"resumeValue": {"action": "accept"}}
    host.wire.post(f"/v1/runs/{run_id}/interrupts/answer", body)
    ended = host.wire.finished(run_id)
    second = host.wire.finished(host.wire.create(f"desk-{desk}", {"text": "Hello"}))

    assert [each["error"]["code"] for each in (ended, second)] == ["quota_exceeded"] * 2
    assert "modelTokensPerDay" in ended["error"]["message"]
    assert len(calls(host, run_id, "provider.usage")) == 2
    assert traces() == ["asked", "look_up", "asked", "refund:A-17"]
    assert used_tokens(host) == 2 * EACH_CALL
