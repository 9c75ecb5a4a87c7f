from __future__ import annotations

from itertools import count

from tests.support.simulation import Simulation, node, sketch
from wopr.runs.append import AppendRules, DataLimits, EventBatch, Guard
from wopr.runs.sensitive_values import SensitiveValues
from wopr.security.redact import Redactor


def test_a_batch_ends_when_its_large_values_reach_the_limit() -> None:
    run = Simulation(sketch([node("first")], []))
    numbers = count()
    batch = EventBatch(
        run.state,
        AppendRules(
            guard=Guard({}),
            redactor=Redactor(),
            new_id=lambda: f"id-{next(numbers)}",
            limits=DataLimits(inline_bytes=1000),
        ),
        sensitive=SensitiveValues(),
        now=run.now,
    )

    while not batch.is_full:
        batch.add("variable.changed", {"name": "v", "next": "x" * 100_000, "writtenBy": "first"})

    assert len(batch.events) == 11
    assert all(len(event.body) < 1000 for event in batch.events)
