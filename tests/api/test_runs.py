from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.api.desk import Reply, Ticket, desk, shout
from wopr import Event, Host, HostRefused, RunCancelled, RunFailed, RunView, Workflow
from wopr.api.errors import HostError
from wopr.protocol.events.run import RunStarted
from wopr.protocol.runs import RunSnapshot
from wopr.testing import Clock, memory_host

pytestmark = pytest.mark.anyio
TICKET = Ticket("Ada", "hello")


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with memory_host(shout) as running:
        yield running


async def test_a_run_waits_for_its_approval_and_returns_a_typed_result(host: Host) -> None:
    run = await host.start(desk(), TICKET)
    waiting = await run.settled()
    [wait] = await run.waits()

    status = await run.answer("accept", feedback="good")
    result: Reply = await run.result()

    assert waiting.status == "waiting-approval"
    assert (wait.node_id, wait.question) == ("review", "Send this?")
    assert (status, result) == ("completed", {"text": "HELLO!"})


async def test_events_are_typed_and_end_with_the_run(host: Host) -> None:
    run = await host.start("hello", {"name": "Ada"})

    events = [event async for event in run.events()]

    started = events[0].data
    assert isinstance(started, RunStarted)
    assert started.workflow_id == "hello"
    assert [event.sequence for event in events] == list(range(len(events)))
    assert events[-1].is_terminal


async def test_events_can_be_read_from_a_sequence_on(host: Host) -> None:
    run = await host.start("hello", {"name": "Ada"})
    await run.result()

    after = [event.sequence async for event in run.events(after=3)]

    assert after[0] == 4
    assert [event.sequence for event in await run.log()][4:] == after


async def test_annotations_of_a_run_reach_its_followers(host: Host) -> None:
    run = await host.start(desk(), TICKET)
    heard: list[str] = []

    async for event in run.events():
        heard.append(event.type)
        if event.type == "approval.requested":
            await run.annotate(label="slow", note="took a day", node="review")
        if event.type == "run.annotated":
            await run.answer("accept")

    assert "run.annotated" in heard
    assert heard[-1] == "run.completed"
    [said] = await run.annotations()
    assert (said.signal.label, said.target.node_id) == ("slow", "review")


@pytest.mark.parametrize("signals", [{}, {"rating": 5, "flag": True}])
async def test_an_annotation_has_exactly_one_signal(host: Host, signals: dict[str, int]) -> None:
    run = await host.start("hello")

    with pytest.raises(ValueError, match="set exactly one of"):
        await run.annotate(**signals)  # type: ignore[arg-type]  # the test is about wrong ones


async def test_a_rejection_fails_the_run_with_its_code(host: Host) -> None:
    run = await host.start(desk(), TICKET)
    await run.settled()
    await run.answer({"action": "reject"})

    with pytest.raises(RunFailed) as failed:
        await run.result()

    assert failed.value.code == "interrupt_rejected"
    assert failed.value.run_id == run.id


async def test_a_cancelled_run_has_no_result(host: Host) -> None:
    run = await host.start(desk(), TICKET)
    await run.settled()

    assert await run.cancel("not wanted") == "cancelled"
    with pytest.raises(RunCancelled):
        await run.result()


async def test_a_paused_run_continues_after_a_resume() -> None:
    clock = Clock()
    flow = Workflow("nap")
    flow.add("sleep", "core.delay", config={"ms": 1000})

    async with memory_host(flow, clock=clock) as host:
        run = await host.start(flow)
        await run.pause("lunch", immediate=True)
        paused = (await run.settled()).status
        resumed = await run.resume("lunch is over")
        clock.advance(1)
        await run.result()

    assert (paused, resumed) == ("paused", "running")


async def test_a_branch_takes_another_path_and_a_replay_takes_the_same(host: Host) -> None:
    run = await host.start(desk(), TICKET)
    await run.settled()
    await run.answer("accept")

    branch = await run.fork(inputs={"text": "bye"})
    await branch.settled()
    await branch.answer("accept")
    replay = await run.replay()

    assert await branch.result() == {"text": "BYE!"}
    assert await replay.result() == await run.result()
    assert (await run.diff(replay)).diverged_at_seq is None
    assert (await run.diff(branch.id)).diverged_at_seq == 0


async def test_a_branch_from_an_event_keeps_the_history_before_it(host: Host) -> None:
    run = await host.start(desk(), TICKET)
    await run.settled()
    before = next(event for event in await run.log() if event.type == "node.completed")
    assert isinstance(before.sequence, int)

    branch = await run.fork(after=before.sequence)
    waiting = await branch.settled()

    assert waiting.status == "waiting-approval"
    kept = [event.type for event in await branch.log()][: before.sequence + 1]
    assert kept[1:] == [event.type for event in await run.log()][1 : before.sequence + 1]


async def test_an_answer_to_a_node_that_does_not_wait_is_refused_by_name(host: Host) -> None:
    run = await host.start(desk(), TICKET)
    await run.settled()

    with pytest.raises(
        HostError, match=r"node rewiew of run .* does not wait for an answer; waiting: review"
    ):
        await run.answer("accept", node="rewiew")


async def test_a_refusal_of_the_host_has_its_code_and_status(host: Host) -> None:
    with pytest.raises(HostRefused) as refused:
        await host.start("nobody")

    assert (refused.value.code, refused.value.status) == ("not_found", 404)
    assert not refused.value.is_transient


async def test_the_same_idempotency_key_starts_one_run(host: Host) -> None:
    first = await host.start("hello", idempotency_key="order-1")
    second = await host.start("hello", idempotency_key="order-1")

    assert first.id == second.id
    assert len(await host.runs(workflowId="hello")) == 1


async def test_a_changed_workflow_is_a_new_version_and_reverting_it_is_another(host: Host) -> None:
    changed = desk()
    changed.add("more", "core.noop")

    versions = [await host.register(each) for each in (desk(), desk(), changed, desk())]

    assert [version.partition("-")[0] for version in versions] == ["1", "1", "2", "3"]
    run = await host.start(desk(), TICKET)
    assert (await run.snapshot()).workflow_version == versions[-1]


async def test_a_document_is_registered_unchanged(host: Host) -> None:
    document = desk().document() | {"version": "mine"}

    assert await host.register(document) == "mine"


async def test_a_child_workflow_is_registered_with_its_parent(host: Host) -> None:
    child = Workflow("child", inputs=Ticket)
    child.add("loud", shout, text=child.inputs.text)
    flow = Workflow("parent")
    flow.sub("call", child, customer="Ada", text="hi")

    run = await host.start(flow)
    await run.result()

    [item] = await host.runs(workflowId="child")
    assert item.status == "completed"


async def test_workflows_that_start_each_other_are_registered_together(host: Host) -> None:
    one, other = Workflow("one"), Workflow("other")
    one.sub("call", other)
    other.sub("call", one)

    await host.register(one)

    assert await host.register(other) == await host.register(other)


async def test_the_inbox_shows_waiting_nodes(host: Host) -> None:
    run = await host.start(desk(), TICKET)
    await run.settled()

    assert [item.run_id for item in await host.inbox(kind="approval")] == [run.id]


async def test_a_test_can_advance_the_time() -> None:
    clock = Clock()
    flow = Workflow("tomorrow")
    flow.add("sleep", "core.delay", config={"ms": 86_400_000})

    async with memory_host(flow, clock=clock) as host:
        run = await host.start(flow)
        before = (await run.snapshot()).status
        clock.advance(86_400)
        await run.result()

    assert before == "running"
    assert clock.now.day == 2


async def test_an_exception_in_the_block_of_a_host_is_raised_unchanged() -> None:
    with pytest.raises(AssertionError, match="not so"):
        async with memory_host():
            raise AssertionError("not so")


async def test_hosts_in_memory_share_nothing() -> None:
    async with memory_host() as one, memory_host() as other:
        run = await one.start("hello")

        with pytest.raises(HostRefused, match="there is no run"):
            await other.run(run.id).snapshot()


async def test_in_a_notebook_show_escapes_the_log_s_markup(host: Host) -> None:
    run = await host.start("hello", {"name": "<script>alert(1)</script>"})
    await run.result()

    shown = (await run.view())._repr_html_()

    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "run.completed" in shown


async def test_in_interactive_python_show_prints_a_table(host: Host) -> None:
    run = await host.start("hello", {"name": "Ada"})
    await run.result()

    shown = repr(await run.view()).splitlines()

    assert shown[0].startswith("hello 1.0: completed (")
    assert shown[1].split() == ["sequence", "time", "type", "node", "payload"]
    assert "run.completed" in shown[-1]


def test_in_a_terminal_show_removes_escapes_from_the_log() -> None:
    snapshot = RunSnapshot(run_id="r1", workflow_id="w\x1b[2J", status="completed")
    event = Event(type="log.appended", sequence=0, payload={"message": "\x1b]0;gone\x07"})
    console = Console(width=200, record=True)

    with console.capture() as captured:
        console.print(RunView(snapshot, [event]))

    assert "\x1b]0" not in captured.get()
    assert "\x1b[2J" not in captured.get()
    assert "log.appended" in captured.get()


async def test_a_data_frame_without_the_extra_names_the_extra(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = await host.start("hello")

    with pytest.raises(ModuleNotFoundError, match=r"wopr\[pandas\]"):
        await run.to_frame()


class Frame(dict[str, Any]):
    """The part of a pandas data frame that a log needs."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        super().__init__({name: [row[name] for row in rows] for name in rows[0]})


async def test_a_data_frame_has_a_row_for_every_event(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = SimpleNamespace(DataFrame=Frame, to_datetime=lambda texts: ("instants", texts))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    run = await host.start("hello", {"name": "Ada"})
    await run.result()

    frame = await run.to_frame()

    log = await run.log()
    assert frame["type"] == [event.type for event in log]
    assert frame["node_id"][:2] == [None, "who"]
    assert frame["timestamp"] == ("instants", [event.timestamp for event in log])


async def test_a_host_in_memory_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async with memory_host() as host:
        await (await host.start("hello")).result()

    assert os.listdir(tmp_path) == []


async def test_the_result_of_a_run_contains_large_values_in_full(host: Host) -> None:
    flow = desk()
    text = "large " * 100_000
    run = await host.start(flow, Ticket("Ada", text))
    await run.settled()
    await run.answer("accept")

    assert await run.result() == {"text": f"{text.upper()}!"}
    shown = (await run.snapshot()).outputs
    assert isinstance(shown, dict)
    assert shown["text"]["$artifact"]["bytes"] == 600_003
