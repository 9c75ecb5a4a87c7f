from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import replace

from tests.engine.random_runs import ended_runs
from tests.support.simulation import Simulation, node, obedient, sketch
from wopr.engine.fold.fold import INTERRUPTED_BY_FORK, INTERRUPTED_BY_PAUSE, fold_all
from wopr.engine.replay import ReplayRecord, divergence, is_command
from wopr.engine.state import RunIdentity, RunState, initial_state, is_history, time_shift
from wopr.protocol.documents import Json, to_iso, to_millis
from wopr.protocol.events import RunEvent
from wopr.protocol.forks import Fork, ForkMode, Shift

T0 = 1_800_000_000_000


def event(sequence: int, event_type: str, payload: Json = None, **changes: Json) -> RunEvent:
    written = RunEvent(
        event_id=f"e{sequence}",
        run_id="r",
        type=event_type,
        payload=payload or {},
        timestamp=to_iso(T0 + sequence),
        sequence=sequence,
    )
    return replace(written, **changes)


def forked(
    mode: ForkMode = "branch", from_seq: int = 0, shifts: list[Shift] | None = None
) -> RunIdentity:
    return RunIdentity(
        run_id="fork",
        tenant="acme",
        workflow_id="w",
        workflow_version="1",
        fork=Fork(source_run_id="r", mode=mode, from_seq=from_seq, shifts=shifts or []),
    )


def test_the_record_omits_how_its_run_was_cancelled() -> None:
    log = [
        event(0, "run.started"),
        event(1, "node.started", node_id="a"),
        event(2, "node.cancelled", node_id="a"),
        event(3, "node.cancelled", node_id="b"),
        event(4, "run.cancelled"),
    ]

    record = ReplayRecord(log)

    assert [each.sequence for each in record.events] == [0, 1]
    assert record.at(2) is None


def test_the_record_keeps_a_cancelled_node_of_a_run_that_continued() -> None:
    log = [event(0, "run.started"), event(1, "node.cancelled"), event(2, "run.failed")]

    assert len(ReplayRecord(log).events) == 3


def test_the_record_omits_the_divergences_of_an_earlier_replay() -> None:
    log = [event(0, "run.started"), event(1, "replay.diverged"), event(2, "run.completed")]

    assert [each.sequence for each in ReplayRecord(log).events] == [0, 2]


def test_the_record_knows_the_time_of_each_event_and_uses_the_given_one_after_its_end() -> None:
    record = ReplayRecord([event(0, "run.started"), event(1, "run.completed")])

    assert [record.time(place, 7) for place in range(3)] == [T0, T0 + 1, 7]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (event(1, "run.paused"), True),
        (event(1, "run.resumed"), True),
        (event(1, "node.cancelled", {"reason": INTERRUPTED_BY_PAUSE}), True),
        (event(1, "node.cancelled", {"reason": INTERRUPTED_BY_FORK}), True),
        (event(1, "node.cancelled", {"reason": "run-failed"}), False),
        (event(1, "node.cancelled", payload=["paused"]), False),
        (event(1, "node.completed"), False),
    ],
)
def test_events_of_operators_are_distinguished_from_those_of_the_run(
    found: RunEvent, expected: bool
) -> None:
    assert is_command(found) is expected


@pytest.mark.parametrize(
    ("expected", "actual", "kind"),
    [
        (event(1, "node.completed", {"a": 1}), event(1, "node.completed", {"a": 1.0}), None),
        (event(1, "node.completed", {"a": 1}), event(1, "node.completed", {"a": 2}), "output"),
        (event(1, "node.completed"), event(1, "node.failed"), "type-mismatch"),
        (
            event(1, "node.started", node_id="a"),
            event(1, "node.started", node_id="b"),
            "type-mismatch",
        ),
        (event(1, "log.appended"), event(1, "log.appended", node_id="b"), "type-mismatch"),
        (None, event(1, "log.appended"), "extra"),
    ],
)
def test_a_difference_has_a_kind(
    expected: RunEvent | None, actual: RunEvent, kind: str | None
) -> None:
    assert divergence(expected, actual) == kind


@given(ended_runs(with_loops=True))
def test_no_run_diverges_from_its_own_record(run: Simulation) -> None:
    record = ReplayRecord(run.log)

    for place, each in enumerate(record.events):
        assert divergence(record.at(place), each) is None


@pytest.mark.parametrize(
    ("mode", "sequence", "expected"),
    [("branch", 4, True), ("branch", 5, False), ("replay", 4, True), ("replay", 99, True)],
)
def test_history_is_what_a_branch_copied_and_all_of_a_replay(
    mode: ForkMode, sequence: int, expected: bool
) -> None:
    assert is_history(forked(mode, 5), sequence) is expected


def test_time_before_a_branch_does_not_count() -> None:
    run = forked(from_seq=5, shifts=[Shift(before=3, by_ms=10), Shift(before=5, by_ms=100)])

    assert [time_shift(run, sequence) for sequence in (0, 2, 3, 4, 5)] == [110, 110, 100, 100, 0]


def folded(identity: RunIdentity, *log: RunEvent) -> RunState:
    graph = Simulation(sketch([node("a")], []), obedient).graph
    return fold_all(initial_state(identity, graph), log)


def test_a_branch_counts_its_time_without_the_gap() -> None:
    run = forked(from_seq=2, shifts=[Shift(before=2, by_ms=86_400_000)])
    own = event(2, "node.completed", node_id="a", timestamp=to_iso(T0 + 86_400_005))

    state = folded(run, event(0, "run.started"), event(1, "node.started", node_id="a"), own)

    assert state.updated_at - state.started_at == 5
    assert to_millis(to_iso(state.started_at)) == T0 + 86_400_000


def test_a_copied_pause_does_not_pause_the_branch() -> None:
    started, paused = event(0, "run.started"), event(1, "run.paused")

    assert folded(forked(from_seq=2), started, paused).status == "running"
    assert folded(forked(from_seq=1), started, paused).status == "paused"
    assert folded(forked("replay", 2), started, paused).status == "paused"


@pytest.mark.parametrize(("from_seq", "inherited"), [(2, 0), (3, 1)])
def test_children_of_the_source_are_not_children_of_the_branch(
    from_seq: int, inherited: int
) -> None:
    dispatched = {"childRunId": "c", "childWorkflowId": "w"}

    state = folded(
        forked(from_seq=from_seq),
        event(0, "run.started"),
        event(1, "node.started", node_id="a"),
        event(2, "node.dispatched", dispatched, node_id="a"),
    )

    assert state.nodes["a"].children == (("c", "w"),)
    assert state.nodes["a"].inherited_children == inherited
