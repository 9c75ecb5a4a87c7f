from __future__ import annotations

from collections.abc import Callable

import psutil  # type: ignore[import-untyped]  # the package carries no types
import pytest

from tests.mcp.conftest import Notes
from tests.mcp.desk import desk, payloads, ran
from tests.support.eventually import eventually_async
from wopr import Agent, mcp_server
from wopr.agents.models.port import ModelRequest
from wopr.api.errors import WorkflowError
from wopr.testing import call, memory_host, say, scripted
from wopr.testing.models import Call

pytestmark = pytest.mark.anyio
SEARCH = call("notes_search", text="rain")


@pytest.mark.parametrize("way", ["process", "http"])
async def test_an_agent_calls_a_tool_of_a_real_server_and_the_call_is_logged(
    notes: Notes, notes_url: Callable[[], str], way: str
) -> None:
    server = notes.server() if way == "process" else notes.server_at(notes_url())
    flow = desk(server)

    async with memory_host(flow, models=scripted(SEARCH, say("Nothing."))) as host:
        run = await host.start(flow)
        snapshot = await run.settled()
        log = await run.log()

    assert snapshot.status == "completed", snapshot.error
    [called] = payloads(log, "agent.toolCalled")
    [returned] = payloads(log, "agent.toolReturned")
    assert called["toolName"] == returned["toolName"] == "mcp:notes.search"
    assert called["transport"] == "mcp"
    assert called["inputs"] == {"text": "rain"}
    assert len(called["argsHash"]) == 64
    assert returned["status"] == "ok"
    assert returned["outcome"] == {"result": "nothing about rain"}
    assert notes.called == ["search"]


async def test_text_of_a_server_reaches_the_model_marked_as_untrusted(notes: Notes) -> None:
    models = scripted(SEARCH, say("Nothing."))

    await ran(desk(notes.server()), models)

    [described] = [spec for spec in models.requests[0].tools if spec.name == "notes_search"]
    assert described.description.startswith('<UNTRUSTED tool="search">')
    assert described.description.count("</UNTRUSTED>") == 1
    result = models.requests[1].messages[-1].content
    assert result.startswith('<UNTRUSTED tool="mcp:notes.search">')
    assert "nothing about rain" in result


async def test_a_tool_outside_the_allowlist_is_neither_offered_nor_called(notes: Notes) -> None:
    models = scripted(call("notes_wipe"), call("notes_read"), say("I could not."))
    flow = desk(
        notes.server(tools=["search"]), config={"tools": ["mcp:notes.search", "mcp:notes.wipe"]}
    )

    log = await ran(flow, models)

    assert [spec.name for spec in models.requests[0].tools] == ["notes_search"]
    assert payloads(log, "agent.toolCalled") == []
    assert notes.called == []
    assert "The tool mcp:notes.wipe does not exist" in str(payloads(log, "log.appended"))


async def test_an_allowlist_gives_no_tool_that_the_operator_has_not_allowed(
    notes: Notes,
) -> None:
    server = notes.server(tools=["search"])
    clerk = Agent("acme.clerk", model="openai:gpt", tools=[server, server.tool("wipe")])
    models = scripted(call("notes_wipe"), say("I could not."))

    log = await ran(desk(clerk), models)

    assert payloads(log, "agent.toolCalled") == []
    assert notes.called == []


async def test_a_call_without_the_required_scope_is_not_made(notes: Notes) -> None:
    models = scripted(SEARCH, say("I may not."))

    log = await ran(desk(notes.server(scopes=["db:write"])), models)

    [returned] = payloads(log, "agent.toolReturned")
    assert (returned["status"], returned["error"]["code"]) == ("forbidden", "forbidden")
    assert "durationMs" not in returned
    assert notes.called == []


async def test_a_failed_tool_reports_why_and_the_agent_continues(notes: Notes) -> None:
    models = scripted(call("notes_refuse"), say("No notes."))

    log = await ran(desk(notes.server()), models)

    [returned] = payloads(log, "agent.toolReturned")
    assert returned["status"] == "error"
    assert "there are no notes today" in returned["error"]["message"]
    assert "there are no notes today" in models.requests[1].messages[-1].content


async def test_the_error_text_of_a_tool_is_cut(notes: Notes) -> None:
    models = scripted(call("notes_rant"), say("It rants."))

    log = await ran(desk(notes.server()), models)

    [returned] = payloads(log, "agent.toolReturned")
    message = returned["error"]["message"]
    assert "no private notes today" in message
    assert "(truncated: " in message
    assert len(message) < 5000
    assert len(models.requests[1].messages[-1].content) < 6000


async def test_a_server_that_dies_during_a_call_is_a_tool_error_and_is_restarted(
    notes: Notes,
) -> None:
    models = scripted(call("notes_die"), SEARCH, say("Nothing."))

    log = await ran(desk(notes.server()), models)

    died, searched = payloads(log, "agent.toolReturned")
    assert (died["status"], died["error"]["code"]) == ("error", "mcp_unavailable")
    assert "notes" in died["error"]["message"]
    assert searched["status"] == "ok"
    assert notes.called == ["die", "search"]
    assert notes.calls[0]["pid"] != notes.calls[1]["pid"]


async def test_a_hanging_server_is_stopped_at_its_limit_and_restarted(notes: Notes) -> None:
    models = scripted(call("notes_hang"), SEARCH, say("Nothing."))

    # Enough for a busy machine to accept the call.
    log = await ran(desk(notes.server(timeout_ms=10_000)), models)

    hung, searched = payloads(log, "agent.toolReturned")
    assert (hung["status"], hung["error"]["code"]) == ("error", "tool_timeout")
    assert searched["status"] == "ok"
    assert notes.calls[0]["pid"] != notes.calls[1]["pid"]


async def test_a_restarted_server_is_found_under_its_address(
    notes: Notes, notes_url: Callable[[], str]
) -> None:
    def started_again(request: ModelRequest) -> Call:
        notes_url()
        return SEARCH

    models = scripted(SEARCH, call("notes_die"), started_again, SEARCH, say("Nothing."))

    log = await ran(desk(notes.server_at(notes_url())), models)

    statuses = [returned["status"] for returned in payloads(log, "agent.toolReturned")]
    assert (statuses[0], statuses[1], statuses[-1]) == ("ok", "error", "ok")


async def test_one_session_serves_many_calls_and_ends_with_the_host(notes: Notes) -> None:
    models = scripted(SEARCH, SEARCH, say("Nothing."))

    await ran(desk(notes.server()), models)

    [pid] = {call["pid"] for call in notes.calls}
    assert len(notes.calls) == 2

    async def has_ended() -> bool:
        return not psutil.pid_exists(pid)

    await eventually_async(has_ended)


async def test_an_agent_whose_server_cannot_be_started_fails_with_the_reason() -> None:
    flow = desk(mcp_server("notes", command=["no-such-command"], tools=["search"]))

    async with memory_host(flow, models=scripted(say("never"))) as host:
        snapshot = await (await host.start(flow)).settled()

    assert snapshot.status == "failed"
    assert snapshot.error
    assert snapshot.error.code == "tool_unavailable"
    assert "The command 'no-such-command' of the MCP server notes was not found" in (
        snapshot.error.message
    )


async def test_a_replay_knows_the_tools_and_calls_none(notes: Notes) -> None:
    flow = desk(notes.server())
    models = scripted(SEARCH, say("Nothing."))

    async with memory_host(flow, models=models) as host:
        run = await host.start(flow)
        await run.settled()
        replay = await run.replay()
        snapshot = await replay.settled()
        told = [(event.type, event.payload) for event in await replay.log()]
        before = [(event.type, event.payload) for event in await run.log()]

    assert snapshot.status == "completed"
    assert told == before
    assert notes.called == ["search"]


async def test_a_secret_is_sent_to_its_server_only(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WOPR_SECRET_test__notes_2Dkey", "hunter2-hunter2-hunter2")
    models = scripted(call("notes_token"), say("It has one."))

    log = await ran(desk(notes.server(secret_env={"NOTES_TOKEN": "notes-key"})), models)

    assert notes.called == ["token"]
    everything = f"{log} {models.requests}"
    assert "hunter2" not in everything
    assert "token [REDACTED" in everything


async def test_a_missing_secret_is_reported_by_its_name(notes: Notes) -> None:
    flow = desk(notes.server(secret_env={"NOTES_TOKEN": "notes-key"}))

    async with memory_host(flow, models=scripted(say("never"))) as host:
        snapshot = await (await host.start(flow)).settled()

    assert snapshot.error
    assert "notes-key" in snapshot.error.message
    assert notes.called == []


def test_an_agent_gets_only_the_named_tools_of_a_server(notes: Notes) -> None:
    server = notes.server(tools=[])

    with pytest.raises(WorkflowError, match="MCP server notes has no tools"):
        Agent("acme.clerk", model="openai:gpt", tools=[server])
