"""Nodes of users that block: the host continues, and names the node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.eventually import eventually
from tests.support.host import ACME, ServedHost, served
from wopr.agents.threads import MAX_THREADS

# The nodes block until the test has made its checks.
APP = """
import contextvars
import os
import time

from wopr import NodeContext, node

GO = {go!r}
SEEN = contextvars.ContextVar("seen", default="no")


def block() -> None:
    while not os.path.exists(GO):
        time.sleep(0.01)


@node("local.plain")
def plain(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    block()
    ctx.set_variable("said", "done")
    return {{"value": inputs.get("value")}}


@node("local.stubborn")
def stubborn(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    time.sleep(3600)  # goes on
    return {{}}


@node("local.eager")
async def eager(ctx: NodeContext, config: dict, inputs: dict) -> dict:
    block()  # blocks here
    return {{}}
"""
STUBBORN_LINE = APP.splitlines().index("    time.sleep(3600)  # goes on") + 1
BLOCKING_LINE = APP.splitlines().index("    block()  # blocks here") + 1


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


@pytest.fixture
def blocking(tmp_path: Path, go: Path) -> Iterator[ServedHost]:
    app = tmp_path / "app.py"
    app.write_text(APP.format(go=str(go)))
    with served(tmp_path / "data", "--app", str(app)) as host:
        yield host
        go.touch()


@contextmanager
def caller(host: ServedHost) -> Iterator[Wire]:
    with Wire(host.url, ACME) as wire:
        yield wire


def test_the_host_responds_while_a_plain_function_blocks(blocking: ServedHost, go: Path) -> None:
    value = {"type": "static", "value": 7}
    definition = workflow([node("slow", "local.plain", inputs={"value": value}), node("after")])
    with caller(blocking) as wire:
        run_id = wire.create(wire.register(definition))

        health = wire.get("/healthz")
        other = wire.run(wire.register(workflow([node("a")])))
        during = wire.snapshot(run_id)
        go.touch()
        ended = wire.finished(run_id)

    assert health.status_code == 200
    assert other["status"] == "completed"
    assert during["status"] == "running"
    assert ended["status"] == "completed"
    assert ended["nodeStates"]["slow"]["outputs"] == {"value": 7}
    assert ended["variables"]["said"] == "done"


def test_a_blocking_function_ends_with_its_time_limit(blocking: ServedHost) -> None:
    definition = workflow([node("slow", "local.stubborn", settings={"timeout": 200})])

    with caller(blocking) as wire:
        ended = wire.run(wire.register(definition))

    assert (ended["status"], ended["error"]["code"]) == ("failed", "node_timeout")


def test_functions_that_continue_after_their_limit_leave_capacity_for_others(
    blocking: ServedHost, go: Path
) -> None:
    limited = workflow([node("slow", "local.stubborn", settings={"timeout": 100})])
    go.touch()
    with caller(blocking) as wire:
        workflow_id = wire.register(limited)
        # On a busy machine the time limit of some passes before they begin.
        while _abandoned(wire) < MAX_THREADS:
            runs = [wire.create(workflow_id) for _ in range(20)]
            ended = {wire.finished(run_id)["error"]["code"] for run_id in runs}
            assert ended == {"node_timeout"}
        line = _logged(blocking, "abandoned thread")
        other = wire.run(wire.register(workflow([node("quick", "local.plain")])))

    assert "app.py" in line
    assert f"line={STUBBORN_LINE} " in line
    assert "node_id=slow" in line
    assert "node_type=local.stubborn" in line
    assert other["status"] == "completed"


def test_a_run_with_a_blocking_function_can_be_cancelled(blocking: ServedHost) -> None:
    definition = workflow([node("slow", "local.stubborn")])

    with caller(blocking) as wire:
        run_id = wire.create(wire.register(definition))
        wire.post(f"/v1/runs/{run_id}/cancel", {})
        ended = wire.finished(run_id)

    assert ended["status"] == "cancelled"


def test_a_host_stops_while_a_function_blocks(blocking: ServedHost) -> None:
    definition = workflow([node("slow", "local.stubborn")])
    with caller(blocking) as wire:
        run_id = wire.create(wire.register(definition))
        wire.events_until(run_id, "node.started")

    blocking.restart()

    with caller(blocking) as wire:
        assert wire.snapshot(run_id)["status"] == "running"


def test_an_async_function_that_blocks_is_logged_with_its_line_and_counted(
    blocking: ServedHost, go: Path
) -> None:
    definition = workflow([node("rude", "local.eager")])
    with caller(blocking) as wire:
        run_id = wire.create(wire.register(definition))
        line = _logged(blocking, "event loop blocked")
        go.touch()
        ended = wire.finished(run_id)
        metrics = wire.metrics()

    assert ended["status"] == "completed"
    assert "app.py" in line
    assert f"line={BLOCKING_LINE} " in line
    assert "node_id=rude" in line
    assert f"run_id={run_id}" in line
    assert 'wopr_event_loop_blocked_total{node_type="local.eager"} 1.0' in metrics


def _abandoned(wire: Wire) -> float:
    """Return the number of functions that the host counts as abandoned."""
    [value] = re.findall(r"^wopr_abandoned_threads (\S+)$", wire.metrics(), re.MULTILINE)
    return float(value)


def _logged(host: ServedHost, text: str) -> str:
    """Return the first line of the host's log with this text. The blocked host cannot respond."""
    return eventually(lambda: next((line for line in host.log().splitlines() if text in line), ""))
