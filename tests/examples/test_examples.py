"""Every example, with scripted models."""

from __future__ import annotations

import runpy
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from typer.testing import CliRunner

from examples import (
    audit_fleet,
    judge_yesterday,
    langgraph_migration,
    model_supervisor,
    research_crew,
    shared_notes,
    support_triage,
)
from wopr import Workflow
from wopr.api.apps import load_app
from wopr.cli.main import app
from wopr.protocol.documents import JsonObject
from wopr.testing import Clock, call, memory_host, say, scripted

pytestmark = pytest.mark.anyio
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TICKET = support_triage.Ticket("ada", "Where is my parcel?")
SHIPPING = support_triage.Triage("shipping", "asks for a parcel")


@pytest.mark.parametrize(
    "name",
    [
        "support_triage.py",
        "research_crew.py",
        "shared_notes.py",
        "model_supervisor.py",
        "judge_yesterday.py",
        "langgraph_migration.py",
    ],
)
def test_an_example_can_be_served_as_an_app(name: str) -> None:
    app = load_app(str(EXAMPLES / name))

    assert app.agents
    assert app.workflows


async def test_a_ticket_is_sorted_answered_and_approved() -> None:
    models = scripted(
        call(support_triage.search_orders, customer="ada"),
        say(SHIPPING, sure=0.95, because="the order is on its way"),
        "It is on its way since Monday.",
    )

    async with memory_host(support_triage.flow, models=models) as host:
        run = await host.start(support_triage.flow, TICKET)
        waiting = await run.settled()
        [wait] = await run.waits()
        await run.answer("accept")
        reply = await run.result()
        log = [event.type for event in await run.log()]

    assert waiting.status == "waiting-approval"
    assert wait.data["artifactData"] == "It is on its way since Monday."
    assert reply == support_triage.Reply("It is on its way since Monday.", "shipping")
    assert log.index("agent.toolCalled") < log.index("agent.toolReturned")
    assert log.index("agent.toolReturned") < log.index("agent.decided")
    assert "agent.handoff" in log
    assert "A-17" in models.requests[1].messages[-1].content


async def test_an_unsure_triage_waits_for_a_person() -> None:
    models = scripted(say(SHIPPING, sure=0.4, because="could be billing"), "We look into it.")

    async with memory_host(support_triage.flow, models=models) as host:
        run = await host.start(support_triage.flow, TICKET)
        await run.settled()
        [wait] = await run.waits()
        await run.answer({"decision": {"team": "billing", "summary": "wants money"}})
        await run.settled()
        await run.answer("accept", node="review")
        reply = await run.result()

    assert (wait.node_id, wait.kind) == ("sort", "low-confidence")
    assert reply.team == "billing"


async def test_a_replay_of_the_triage_calls_no_model() -> None:
    models = scripted(say(SHIPPING, sure=0.95), "It is on its way.")

    async with memory_host(support_triage.flow, models=models) as host:
        run = await host.start(support_triage.flow, TICKET)
        await run.settled()
        await run.answer("accept")
        replay = await run.replay()
        repeated = await replay.result()
        different = await run.diff(replay)

    assert repeated.text == "It is on its way."
    assert different.diverged_at_seq is None
    assert len(models.requests) == 2


async def test_a_supervisor_hands_the_question_from_the_finder_to_the_author() -> None:
    models = scripted(
        call(research_crew.look_up, word="sky"),
        say(research_crew.Facts(research_crew.LIBRARY["sky"])),
        "Blue light is scattered most.",
    )

    async with memory_host(research_crew.crew, models=models) as host:
        run = await host.start(research_crew.crew, research_crew.Question("Why is it blue?"))
        answer = await run.result()
        log = await run.log()

    decided = [
        event.payload["decision"] for event in log if event.type == "runOrchestrator.decided"
    ]
    assert answer == research_crew.Answer("Blue light is scattered most.")
    assert [decision["kind"] for decision in decided] == [
        "next-worker",
        "next-worker",
        "terminate",
    ]
    assert [event.type for event in log].count("agent.handoff") == 2


def _starts(workflow: Workflow[Any, Any]) -> JsonObject:
    return {"kind": "next-worker", "nextWorkerIds": [workflow.id]}


async def test_a_model_leads_the_help_desk_and_an_unsure_decision_waits() -> None:
    models = scripted(
        say(_starts(model_supervisor.look_up), sure=0.9, because="there is an order number"),
        call(model_supervisor.find_order, number="A-17"),
        "It was sent on Monday.",
        say(_starts(model_supervisor.answer), sure=0.4, because="the note is short"),
        "It is on its way.",
        say({"kind": "terminate", "reason": "answered"}, sure=1),
    )

    async with memory_host(model_supervisor.desk, models=models) as host:
        run = await host.start(model_supervisor.desk, model_supervisor.Ticket("Where is A-17?"))
        await run.settled()
        [wait] = await run.waits()
        await run.answer({"ratified": True})
        reply = await run.result()
        log = await run.log()

    decided = [e.payload["decision"] for e in log if e.type == "runOrchestrator.decided"]
    assert (wait.node_id, wait.kind) == ("decide", "low-confidence")
    assert reply == model_supervisor.Reply("It is on its way.")
    assert [each["kind"] for each in decided] == ["next-worker", "next-worker", "terminate"]
    assert [each.get("confidence") for each in decided] == [0.9, None, 1.0]
    assert "It was sent on Monday." in models.requests[3].messages[1].content


async def test_the_help_desk_shares_one_conversation_and_the_proofreader_starts_a_new_one() -> None:
    models = scripted(
        "It is blu.", "It lacks a reason.", "It is blu: light scatters.", "It is blue."
    )

    async with memory_host(shared_notes.flow, models=models) as host:
        run = await host.start(shared_notes.flow, shared_notes.Topic("the sky"))
        article = await run.result()
        replay = await run.replay()
        repeated = await replay.result()
        different = await run.diff(replay)

    told = [[(m.role, m.content) for m in request.messages[1:]] for request in models.requests]
    assert article == repeated == shared_notes.Article("It is blue.")
    assert [len(messages) for messages in told] == [1, 3, 5, 1]
    # The writer sees its own draft as its own message, and the editor's text as data.
    assert told[2][1] == ("assistant", "It is blu.")
    assert told[2][3][0] == "user"
    assert "It lacks a reason." in told[2][3][1]
    assert "UNTRUSTED" in told[2][3][1]
    assert different.diverged_at_seq is None
    assert len(models.requests) == 4


async def test_a_judge_rates_yesterday_s_runs_and_not_today_s() -> None:
    clock = Clock()
    models = scripted(
        say(judge_yesterday.RunRating(rating=4, note="friendly")),
        say(judge_yesterday.RunRating(rating=2, note="curt")),
    )

    async with memory_host(judge_yesterday.flow, models=models, clock=clock) as host:
        runs = [await host.start("hello", {"name": name}) for name in ("Ada", "Bob")]
        clock.advance(1)
        for run in runs:
            await run.result()
        clock.advance(timedelta(hours=20).total_seconds())
        judged = await judge_yesterday.judge_yesterday(host, "hello", clock.now)
        stars = [(await run.annotations())[0].signal.rating for run in runs]
        clock.advance(timedelta(days=2).total_seconds())
        later = await judge_yesterday.judge_yesterday(host, "hello", clock.now)

    assert judged is not None
    assert judged.counts["annotated"] == 2
    assert sorted(star for star in stars if isinstance(star, int)) == [2, 4]
    assert later is None


async def test_a_migrated_graph_returns_the_same_values_and_waits_in_the_inbox(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = await langgraph_migration.run_without_wopr("Where is A-17?")
    flow = langgraph_migration.flow

    async with memory_host(flow) as host:
        run = await host.start(flow, langgraph_migration.Question("Where is A-17?"))
        waiting = await run.settled()
        [wait] = await run.waits()
        await run.answer("accept")
        after = await run.result()
        log = [event.type for event in await run.log()]

    assert "Send this reply?" in capsys.readouterr().out
    assert waiting.status == "waiting-approval"
    assert (wait.question, wait.data["artifactData"]) == ("Send this reply?", before)
    assert after.reply == before
    assert {"agent.toolCalled", "agent.toolReturned", "provider.usage"} <= set(log)


async def test_the_migrated_graph_can_be_replayed_and_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = langgraph_migration.flow
    model = FakeListChatModel(responses=["Monday.", "Nobody knows.", "Never asked for."])
    monkeypatch.setattr(langgraph_migration, "MODEL", model)

    async with memory_host(flow) as host:
        run = await host.start(flow, langgraph_migration.Question("Where is A-17?"))
        await run.settled()
        await run.answer("accept")
        await run.result()
        replay = await run.replay()
        repeated = await replay.result()
        different = await run.diff(replay)
        fork = await run.fork(inputs={"question": "Where is B-2?"})
        await fork.settled()
        await fork.answer("reject")
        other = await fork.result()

    assert repeated.reply == "Monday."
    assert different.diverged_at_seq is None
    assert other.reply == "We will call you."
    # One answer for the run and one for the fork; the replay needed none.
    assert model.i == 2


def test_the_lines_of_the_fleet_example_pass_the_check(tmp_path: Path) -> None:
    lines = tmp_path / "audits.ndjson"

    findings = audit_fleet.main(lines)
    checked = CliRunner().invoke(app, ["fleet", "check", str(lines), "--strict"])

    assert findings == 2
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "audit_fleet.py",
            "2 failed checks; validate the log with `wopr fleet check audits.ndjson`",
        ),
        ("langgraph_migration.py", "It is on its way since Monday."),
    ],
)
def test_an_example_script_needs_no_arguments(
    name: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])

    runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    assert capsys.readouterr().out.splitlines()[-1] == told
