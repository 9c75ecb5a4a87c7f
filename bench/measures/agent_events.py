"""Events of agents appended per second: runs of one agent that calls many tools.

The appender checks the emitter, the capability and the payload of every event, and searches it for
secrets. The arguments of tool calls are hashed.
"""

from __future__ import annotations

from bench import wire
from bench.figures import Figure, Floors, Size
from bench.load import Requests
from bench.rates import measure_rate
from bench.server import serving_host
from bench.workflows import AGENT, TOOL_CALLS

CLIENTS = 16
# A call and a return per tool, the reasoning, the decision, and start and end of node and run.
EVENTS = 2 * TOOL_CALLS + 6


def measure_agent_events(size: Size, floors: Floors) -> list[Figure]:
    """Measure the whole host, and the store alone with the same number of writers."""
    with serving_host("--conformance") as served:
        wire.call(served.port, "POST", "/v1/workflows", AGENT)
        job = Requests(
            port=served.port,
            clients=CLIENTS,
            requests=[wire.create_run(AGENT["id"])],
            seconds=size.seconds,
        )
        rate = measure_rate(served, job)
    floor = floors.append[CLIENTS]
    each = len(floors.events)
    return [
        Figure(
            measure="agent-events",
            name=f"runs of an agent with {TOOL_CALLS} tool calls, {CLIENTS} clients",
            value=rate.per_second * EVENTS,
            unit="events/s",
            cpu_us=rate.cpu_us / EVENTS,
            load_us=rate.load_us / EVENTS,
            floor=floor.rate * each,
            floor_cpu_us=floor.cpu_us / each,
            p50_ms=rate.responses.p50_ms,
            p99_ms=rate.responses.p99_ms,
        )
    ]
