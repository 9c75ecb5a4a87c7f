from __future__ import annotations

from itertools import count

from tests.engine.simulation import Simulation, node, sketch

from wopr.runtime.appender import Burst, DataLimits, Guard
from wopr.runtime.spilling import Spilled
from wopr.runtime.vault import Vault
from wopr.security.redact import Redactor


def test_a_batch_ends_when_the_values_that_it_refers_to_are_large_together() -> None:
    run = Simulation(sketch([node("first")], []))
    numbers = count()
    burst = Burst(
        run.state,
        vault=Vault(),
        redactor=Redactor(),
        guard=Guard({}),
        now=run.now,
        new_id=lambda: f"id-{next(numbers)}",
        limits=DataLimits(inline_bytes=1000),
        log_bytes=0,
        spilled=Spilled(),
    )

    while not burst.is_full:
        burst.add("variable.changed", {"name": "v", "next": "x" * 100_000, "writtenBy": "first"})

    assert len(burst.events) == 11
    assert all(len(event.body) < 1000 for event in burst.events)
