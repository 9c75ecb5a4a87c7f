"""Random workflows, and runs of them from the first event to the last."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import strategies as st

from tests.engine.trigger_table import RULES
from tests.support.simulation import Ending, Simulation, edge, failure, node, obedient, sketch
from wopr.engine.fold.fold import fold
from wopr.engine.outcome import Completed
from wopr.engine.state import RunState, initial_state
from wopr.protocol.documents import Unset
from wopr.protocol.events import RunEvent
from wopr.protocol.workflow import WorkflowDefinition, WorkflowEdge, WorkflowNode

# `output.ok` has no value after a failure, the last one never has.
CONDITIONS = ("", "", "", "", "", "true", "false", "output.ok", "output.ok", "nodes.absent.ok")
WEIGHTED_RULES = (*RULES, "all_success", "any_failed", "all_complete")


@st.composite
def definitions(draw: st.DrawFn, *, with_loops: bool = False) -> WorkflowDefinition:
    """Generate a workflow of a few nodes; with loops, edges can also lead back to a loop's head."""
    names = [f"n{index}" for index in range(draw(st.integers(1, 7)))]
    heads = names[: draw(st.integers(1, 3))] if with_loops else []
    edges = [
        edge(
            draw(st.sampled_from(names[:index])),
            name,
            draw(st.sampled_from(WEIGHTED_RULES)),
            draw(st.sampled_from(CONDITIONS)),
        )
        for index, name in enumerate(names)
        for _ in range(draw(st.integers(0, 3)) if index else 0)
    ]
    edges += [
        edge(draw(st.sampled_from(names[names.index(head) :])), head)
        for head in heads
        for _ in range(draw(st.integers(0, 2)))
    ]
    return sketch(
        [
            node(
                name,
                "core.loop" if name in heads else "core.noop",
                config={"times": draw(st.integers(0, 4))},
                disabled=draw(st.integers(0, 19)) == 19,
                settings={"maxRetries": draw(st.integers(0, 2)), "backoff": {"initialMs": 5}},
            )
            for name in draw(st.permutations(names))
        ],
        {found["id"]: found for found in edges}.values(),
        maxLoopbackIterations=draw(st.integers(1, 5)),
    )


@st.composite
def ended_runs(draw: st.DrawFn, *, with_loops: bool = False) -> Simulation:
    """Generate an ended run with random outcomes and a random order of concurrent events."""
    random = draw(st.randoms(use_true_random=False))
    definition = draw(definitions(with_loops=with_loops))
    names = [found.id for found in definition.nodes]

    def behave(state: RunState, found: WorkflowNode) -> Ending:
        return _random_ending(random, state, found)

    run = Simulation(
        definition,
        behave,
        inline=[name for name in names if random.random() < 0.5],
        recursionLimit=draw(st.sampled_from([200, 20, 3])),
    )
    run.run(random.choice)
    return run


def _random_ending(random: Random, state: RunState, found: WorkflowNode) -> Ending:
    roll = random.randrange(10)
    if roll > 6:
        return failure(retryable=roll == 8)
    known = obedient(state, found)
    outputs = known.outputs if isinstance(known, Completed) else {}
    return Completed({**outputs, "ok": roll < 5})


def history(run: Simulation) -> Iterator[tuple[RunState, RunEvent]]:
    """Return each event of a log with the state before it."""
    state = initial_state(run.state.identity, run.graph)
    for event in run.log:
        yield state, event
        state = fold(state, event)


def carries(state: RunState, found: WorkflowEdge) -> str:
    """Return the state of an edge, as a letter of the trigger table, computed by the test."""
    source = state.nodes[found.source_node_id]
    if source.status == "failed":
        listens = found.trigger_rule in ("any_failed", "all_complete", "any_success")
        return "k" if listens and _expression(found) == "false" else "f"
    if source.status == "completed":
        ok = (source.outputs or {}).get("ok", False)
        answers = {"": True, "true": True, "false": False, "output.ok": ok}
        return "s" if answers[_expression(found)] else "k"
    return "k" if source.status in ("skipped", "cancelled") else "p"


def _expression(found: WorkflowEdge) -> str:
    condition = found.condition
    if isinstance(condition, Unset) or isinstance(condition.expression, Unset):
        return ""
    return condition.expression
