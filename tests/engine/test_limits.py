from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.support.simulation import EPOCH, Simulation, edge, failure, node, sketch
from wopr.engine.limits import HostLimits, backoff_ms
from wopr.engine.plan import Breach, Finish, Plan, Start, plan, wake_at
from wopr.protocol.documents import JsonObject


def test_a_node_beyond_the_cap_is_named_and_never_starts() -> None:
    names = ["n1", "n2", "n3", "n4", "n5"]
    edges = [edge(a, b) for a, b in pairwise(names)]
    run = Simulation(sketch(map(node, names), edges), inline=names, recursionLimit=3)

    run.run()

    assert run.about("node.started") == ["n1", "n2", "n3"]
    assert run.log[-2].type == "cap.breached"
    assert run.log[-2].node_id == "n4"
    assert run.log[-2].payload == {"kind": "node-executions", "limit": 3, "observed": 4}
    assert run.state.error is not None
    assert run.state.error.code == "recursion_limit_exceeded"


def test_as_many_nodes_start_as_the_cap_allows() -> None:
    run = Simulation(sketch([node("a"), node("b"), node("c")]), recursionLimit=2)

    assert run.plan().steps == (Start("a"), Start("b"))


def test_a_run_times_out_only_beyond_its_limit() -> None:
    run = Simulation(sketch([node("a")]), runTimeoutMs=1000)
    run.take_steps()

    assert plan(run.state, EPOCH + 1000, run.limits) == Plan((), EPOCH + 1001)
    breach = plan(run.state, EPOCH + 1001, run.limits).steps[0]

    assert isinstance(breach, Breach)
    assert (breach.kind, breach.limit, breach.observed) == ("run-duration", 1000, 1001)
    assert (breach.error.code, breach.node_id) == ("run_timeout", None)


def test_a_running_node_s_time_limit_is_a_timer() -> None:
    nodes = [node("a", settings={"timeout": 500}), node("b", settings={"timeout": 300}), node("c")]
    run = Simulation(sketch(nodes, timeout=1000))
    assert run.plan().wake_at == EPOCH + 1001

    run.take_steps()
    assert run.plan().wake_at == EPOCH + 301

    run.settle("b")
    assert run.plan().wake_at == EPOCH + 501


def test_the_time_limit_of_a_node_in_flight_wakes_no_run() -> None:
    nodes = [node("a", settings={"timeout": 500}), node("b", settings={"timeout": 300})]
    run = Simulation(sketch(nodes, timeout=1000))
    run.take_steps()

    assert wake_at(run.state, EPOCH, run.limits, in_flight=["b"]) == EPOCH + 501
    assert wake_at(run.state, EPOCH, run.limits, in_flight=["a", "b"]) == EPOCH + 1001


def test_each_attempt_of_a_node_has_its_own_time_limit() -> None:
    settings = {"timeout": 500, "maxRetries": 1, "backoff": {"initialMs": 50}}
    run = Simulation(sketch([node("a", settings=settings)]), lambda *_: failure("busy"))
    run.take_steps()
    run.now += 400
    run.settle("a")

    run.now += 50
    run.take_steps()

    assert run.plan().wake_at == EPOCH + 450 + 501


def test_a_wait_for_an_answer_does_not_count_against_the_node_s_time() -> None:
    run = Simulation(sketch([node("a", settings={"timeout": 500})], timeout=9000))
    run.take_steps()
    about = {"nodeId": "a", "interruptId": "i", "kind": "custom", "key": "a:0"}
    run.add("node.suspended", about, "a")
    run.add("interrupt.requested", {"data": {"customKind": "k"}}, "a")
    assert run.plan() == Plan((), EPOCH + 9001)

    run.now += 4000
    run.add("interrupt.resolved", about | {"resumeValue": 1}, "a")
    run.add("node.resumed", about, "a")

    assert run.plan().wake_at == EPOCH + 4000 + 501


@pytest.mark.parametrize(
    ("host", "workflow", "wanted", "expected"),
    [(9000, 0, 9999, 9000), (9000, 5000, 9999, 5000), (9000, 5000, 3000, 3000), (9000, 0, 1, 1)],
)
def test_a_run_can_lower_its_time_limit_and_never_raise_it(
    host: int, workflow: int, wanted: int, expected: int
) -> None:
    limits = HostLimits(max_run_duration_ms=host)
    run = Simulation(sketch([node("a")], timeout=workflow), limits=limits, runTimeoutMs=wanted)

    assert run.plan().wake_at == EPOCH + expected + 1


def test_invalid_options_leave_the_host_s_limits() -> None:
    run = Simulation(sketch([node("a")]), recursionLimit="many")

    assert run.plan().steps == (Start("a"),)


def test_a_finished_graph_completes_even_at_the_cap() -> None:
    run = Simulation(sketch([node("a")]), inline=["a"], recursionLimit=1)
    run.take_steps()

    assert run.state.status == "completed"
    assert plan(replace(run.state, status="running"), EPOCH, run.limits).steps == (Finish(),)


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        ({}, [1000, 2000, 4000, 8000]),
        ({"initialMs": 10, "factor": 1}, [10, 10, 10, 10]),
        ({"initialMs": 10, "factor": 3, "maxMs": 50}, [10, 30, 50, 50]),
        ({"initialMs": 0}, [0, 0, 0, 0]),
    ],
)
def test_each_retry_waits_longer_up_to_the_maximum(policy: JsonObject, delays: list[int]) -> None:
    declared = sketch([node("a", settings={"backoff": policy})]).nodes[0]

    assert [backoff_ms(declared, attempt) for attempt in (1, 2, 3, 4)] == delays
    assert backoff_ms(declared, 100_000) <= 60_000
