"""A pause, and the work between two pauses, survive a kill of the host process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.script import SECRET, TRACE, traces
from tests.support.eventually import eventually
from tests.support.fragile_host import FragileHost
from wopr.protocol.documents import JsonObject

HERE = Path(__file__).parent
# Each desk is a separate app, so that a host imports one framework only.
APPS = {"langgraph": "graph_desk.py", "agents": "agents_desk.py", "pydantic": "pydantic_desk.py"}
each_desk = pytest.mark.parametrize("desk", APPS)


@pytest.fixture
def host(desk: str, tmp_path: Path, trace: Path) -> Iterator[FragileHost]:
    # The apps are modules of the tests and import other test modules.
    root = str(HERE.parents[1])
    variables = {TRACE: str(trace), "OPENAI_API_KEY": "", "PYTHONPATH": root}
    app = str(HERE / APPS[desk])
    running = FragileHost(tmp_path / "host", ("--app", app), variables)
    running.start()
    yield running
    if running.process is not None:
        running.stop()


def calls(host: FragileHost, run_id: str, kind: str) -> list[JsonObject]:
    return [event["payload"] for event in host.wire.log(run_id) if event["type"] == kind]


def files(host: FragileHost) -> list[Path]:
    return [path for path in host.data_dir.rglob("*") if path.is_file()]


@each_desk
def test_a_pause_survives_a_kill_and_the_answer_repeats_no_call(
    host: FragileHost, desk: str
) -> None:
    run_id = host.wire.create(f"desk-{desk}", {"text": "Please refund A-17"})
    host.wire.events_until(run_id, "approval.requested")

    host.kill()
    host.start()
    body = {"resumeValue": {"action": "accept"}}
    answer = host.wire.post(f"/v1/runs/{run_id}/interrupts/answer", body)

    assert answer.status_code == 200, answer.text
    assert host.wire.finished(run_id)["outputs"] == {"text": "Done: A-17 refunded"}
    assert traces() == ["asked", "look_up", "asked", "refund:A-17", "asked"]
    assert len(calls(host, run_id, "provider.usage")) == 3
    assert len(calls(host, run_id, "agent.toolReturned")) == 2
    # The token that the model passed to a tool was in the framework's state. It is in no file.
    assert not [file for file in files(host) if SECRET.encode() in file.read_bytes()]


@each_desk
def test_a_kill_during_a_tool_call_repeats_the_tool_call_but_not_the_model_request(
    host: FragileHost, desk: str, trace: Path
) -> None:
    run_id = host.wire.create(f"desk-{desk}", {"text": "slow, please"})
    eventually(lambda: "slow" in traces())
    host.kill()
    Path(f"{trace}.go").touch()

    host.start()

    assert host.wire.finished(run_id)["outputs"] == {"text": "Done: at last"}
    if desk == "agents":
        # The SDK reports its state before each request: a kill repeats the interrupted turn.
        assert traces() == ["asked", "slow", "asked", "slow", "asked"]
    else:
        assert traces() == ["asked", "slow", "slow", "asked"]
        assert len(calls(host, run_id, "agent.toolCalled")) == 1
    assert len(calls(host, run_id, "agent.toolReturned")) == 1
