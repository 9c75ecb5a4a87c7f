"""The maximum sizes of a value, an event and the data of a run."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.client import Wire
from tests.support.definitions import fresh, node, variable, workflow
from tests.support.host import ServedHost
from tests.support.interrupts import answer, gate
from tests.wire.conftest import Connect
from wopr.protocol.documents import JsonObject

NewHost = Callable[..., ServedHost]


def doubling(times: int) -> JsonObject:
    """Return a workflow that doubles a text repeatedly."""
    config = {"name": "v", "expression": "variables.v + variables.v"}
    nodes = [node(f"n{n}", "core.setVariable", config=config) for n in range(times)]
    return workflow(nodes, id=fresh("double"), variables=[variable("v", defaultValue="x" * 1024)])


def log_bytes(wire: Wire, run_id: str) -> int:
    return sum(len(str(event)) for event in wire.log(run_id))


def test_a_repeatedly_doubled_variable_fails_its_node_at_the_limit_of_a_value(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host(WOPR_MAX_VALUE_BYTES="100000"))

    found = wire.run(wire.register(doubling(18)))

    assert found["status"] == "failed"
    assert found["error"]["code"] == "value_too_large"
    assert "131074 bytes" in found["error"]["message"]
    assert "100000" in found["error"]["message"]
    assert found["error"]["details"] == {"size": 131074, "limit": 100000}
    assert found["nodeStates"]["n6"]["status"] == "failed"
    assert len(found["variables"]["v"]) == 65536


def test_the_total_data_of_a_run_is_limited(connect: Connect, new_host: NewHost) -> None:
    wire = connect(at=new_host(WOPR_MAX_RUN_BYTES="200000"))
    nodes = [
        node(f"n{n}", "core.setVariable", config={"name": f"v{n}", "value": "x" * 10_000})
        for n in range(50)
    ]

    found = wire.run(wire.register(workflow(nodes)))

    assert found["status"] == "failed"
    assert found["error"]["code"] == "run_data_limit_exceeded"
    assert "200000" in found["error"]["message"]
    assert log_bytes(wire, found["runId"]) < 300_000


def test_the_data_of_a_run_counts_after_a_restart(connect: Connect, new_host: NewHost) -> None:
    host = new_host(WOPR_MAX_RUN_BYTES="100000")
    wire = connect(at=host)
    value = {"name": "v", "value": "x" * 30_000}
    big = [node(name, "core.setVariable", config=value) for name in ("a", "b")]
    flow = workflow([big[0], gate("gate"), big[1]])
    run_id = wire.create(wire.register(flow))
    wire.events_until(run_id, "interrupt.requested")

    host.restart()
    wire = connect(at=host)
    assert answer(wire, run_id, "gate", {"action": "accept"}).status_code == 200

    assert wire.finished(run_id)["error"]["code"] == "run_data_limit_exceeded"


def test_an_oversized_answer_is_refused_and_the_run_still_waits(
    connect: Connect, new_host: NewHost
) -> None:
    wire = connect(at=new_host(WOPR_MAX_VALUE_BYTES="10000"))
    questions = [{"id": "q1", "question": "Which one?"}]
    asks = gate("gate", "core.clarificationGate", questions=questions)
    run_id = wire.create(wire.register(workflow([asks])))
    wire.events_until(run_id, "interrupt.requested")

    refused = answer(wire, run_id, "gate", {"answers": {"q1": "x" * 20_000}})

    assert (refused.status_code, refused.json()["error"]) == (413, "payload_too_large")
    assert "10000" in refused.json()["message"]
    assert wire.snapshot(run_id)["status"] == "waiting-input"


def test_inputs_too_large_for_an_event_are_refused(connect: Connect, new_host: NewHost) -> None:
    wire = connect(at=new_host(WOPR_MAX_EVENT_BYTES="50000", WOPR_MAX_VALUE_BYTES="20000"))
    flow = wire.register(workflow([node("a")]))

    refused = wire.post("/v1/runs", {"workflowId": flow, "inputs": {"text": "x" * 60_000}})

    assert (refused.status_code, refused.json()["error"]) == (413, "payload_too_large")
    assert "50000" in refused.json()["message"]


def test_outputs_too_large_for_an_event_fail_the_run(connect: Connect, new_host: NewHost) -> None:
    wire = connect(at=new_host(WOPR_MAX_EVENT_BYTES="50000", WOPR_MAX_VALUE_BYTES="20000"))
    nodes = [
        node(f"n{n}", "core.setVariable", config={"name": f"v{n}", "value": "x" * 19_000})
        for n in range(4)
    ]

    found = wire.run(wire.register(workflow(nodes, edges=[])))

    assert found["status"] == "failed"
    assert found["error"]["code"] == "event_too_large"


def test_an_expression_with_a_huge_result_fails_before_it_is_evaluated(acme: Wire) -> None:
    source = "+".join(["variables.v"] * 25)
    nodes = [node("n", "core.setVariable", config={"name": "w", "expression": source})]
    flow = workflow(nodes, variables=[variable("v", required=True)])

    found = acme.run(acme.register(flow), {"v": "x" * 3_000_000})

    assert found["status"] == "failed"
    assert found["error"]["code"] == "expression_error"
    assert "MiB" in found["error"]["message"]
