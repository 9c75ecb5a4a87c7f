"""Feedback on runs, as the store lists and counts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.feedback_rows import DAY, HOUR, MIDNIGHT, annotation, rated, window
from tests.support.rows import OTHER, T0, TENANT, batch, ended
from wopr.store.port import RunFilter, Store
from wopr.store.port.feedback import FeedbackCount, GroupBy, SignalCount

pytestmark = pytest.mark.anyio


async def runs_of(store: Store, where: RunFilter, tenant: str = TENANT) -> list[str]:
    return [row.run_id for row in (await store.runs(tenant, where, None, 100)).runs]


async def counts(
    store: Store,
    by: GroupBy = "nothing",
    workflow_id: str | None = None,
    agent_id: str | None = None,
) -> list[tuple[int, ...]]:
    where = replace(window(), workflow_id=workflow_id, agent_id=agent_id)
    found = await store.signal_counts(TENANT, where, by)
    return [(each.runs, each.flagged, each.corrected, each.intervened) for each in found]


async def three_runs(store: Store) -> None:
    """Create runs 1, 2 and 3 of the same hour without feedback."""
    await store.append(TENANT, [ended(f"run-{n}", first=0, created_at=T0 + n) for n in (1, 2, 3)])


async def test_runs_are_found_by_their_signals_newest_first(store: Store) -> None:
    await three_runs(store)
    await store.put_annotation(TENANT, annotation("a", "run-1"))
    await store.put_annotation(TENANT, rated("b", 4, run_id="run-1"))
    await store.put_annotation(TENANT, annotation("c", "run-3"))

    assert await runs_of(store, RunFilter(flagged=True)) == ["run-3", "run-1"]
    assert await runs_of(store, RunFilter(flagged=False)) == ["run-2"]
    assert await runs_of(store, RunFilter(flagged=True, rated=False)) == ["run-3"]
    assert await runs_of(store, RunFilter(corrected=True)) == []
    assert await runs_of(store, RunFilter(flagged=True), OTHER) == []


async def test_runs_are_found_by_labels_of_any_length(store: Store) -> None:
    await three_runs(store)
    long = "x" * 5000
    row = annotation("a", "run-1", kind="label")
    await store.put_annotation(TENANT, replace(row, label=long))
    await store.put_annotation(TENANT, replace(row, annotation_id="b", label="a\x00b"))

    assert await runs_of(store, RunFilter(label=long)) == ["run-1"]
    assert await runs_of(store, RunFilter(label="a\x00b")) == ["run-1"]
    assert await runs_of(store, RunFilter(label=long + "x")) == []
    assert await runs_of(store, RunFilter(label=long), OTHER) == []


async def test_a_run_with_several_annotations_is_counted_once(store: Store) -> None:
    await three_runs(store)
    for name in ("a", "b"):
        await store.put_annotation(TENANT, annotation(name, "run-1"))
    await store.put_annotation(TENANT, annotation("c", "run-1", kind="correction"))
    await store.put_annotation(TENANT, annotation("d", "run-2", kind="correction", source="agent"))

    assert await counts(store) == [(3, 1, 2, 1)]
    assert await counts(store, "workflow") == [(3, 1, 2, 1)]
    assert await counts(store, workflow_id="other") == []


async def test_an_agent_is_found_with_the_runs_it_took_part_in(store: Store) -> None:
    first = replace(batch("run-1"), agents=("core.a.b",))
    second = replace(batch("run-2"), agents=("core.a.b", "core.c.d"))
    await store.append(TENANT, [first, second, batch("run-3")])
    await store.append(TENANT, [replace(batch("run-1", 1), agents=("core.a.b",))])
    await store.put_annotation(TENANT, annotation("a", "run-2", agent_id="core.c.d"))

    found = await store.signal_counts(TENANT, window(), "agent")

    assert sorted((each.agent_id, each.runs, each.flagged) for each in found) == [
        ("core.a.b", 2, 0),
        ("core.c.d", 1, 1),
    ]
    assert await counts(store, agent_id="core.c.d") == [(1, 1, 0, 0)]
    assert await counts(store) == [(3, 1, 0, 0)]


async def test_an_answer_counts_for_all_agents_of_the_run_early_and_late(store: Store) -> None:
    await store.append(TENANT, [replace(batch("run-1"), agents=("core.a.b",))])
    await store.append(TENANT, [replace(batch("run-1", 1), is_intervention=True)])
    await store.append(TENANT, [replace(batch("run-1", 2), agents=("core.c.d",))])

    assert await counts(store) == [(1, 0, 0, 1)]
    assert await counts(store, "agent") == [(1, 0, 0, 1), (1, 0, 0, 1)]


async def test_runs_are_counted_by_the_hour_and_the_day_of_their_creation(store: Store) -> None:
    times = (MIDNIGHT, MIDNIGHT + HOUR, MIDNIGHT + DAY)
    runs = [ended(f"run-{n}", first=0, created_at=at) for n, at in enumerate(times)]
    await store.append(TENANT, runs)
    # Given later than the run, but counted at the time of the run.
    await store.put_annotation(TENANT, annotation("a", "run-0", at=MIDNIGHT + 5 * DAY))

    by_time = await store.signal_counts(TENANT, window(until=MIDNIGHT + 2 * DAY), "time")
    ten_days = await store.signal_counts(TENANT, window(until=MIDNIGHT + 10 * DAY), "time")

    assert sorted((each.bucket - MIDNIGHT, each.runs, each.flagged) for each in by_time) == [
        (0, 1, 1),
        (HOUR, 1, 0),
        (DAY, 1, 0),
    ]
    assert sorted((each.bucket - MIDNIGHT, each.runs) for each in ten_days) == [(0, 2), (DAY, 1)]


async def test_a_run_has_its_own_numbers(store: Store) -> None:
    await three_runs(store)
    await store.put_annotation(TENANT, rated("a", 5, run_id="run-1"))
    await store.put_annotation(TENANT, rated("b", 2, run_id="run-1"))
    await store.put_annotation(TENANT, annotation("c", "run-1"))

    found = await store.run_feedback(TENANT, ["run-1", "run-2"])

    assert found == {
        "run-1": FeedbackCount(ratings=2, rating_sum=7, corrections=0, labels=0, flags=1)
    }
    assert found["run-1"].mean == 3.5
    assert await store.run_feedback(OTHER, ["run-1"]) == {}
    assert await store.run_feedback(TENANT, []) == {}


async def test_a_check_of_an_audit_is_listed_but_not_counted(store: Store) -> None:
    await three_runs(store)
    check = annotation("a", "run-1", kind="flag", source="audit", agent_id="core.a.b")
    await store.put_annotation(TENANT, check)

    assert await store.annotations(TENANT, "run-1", None, 10) == [check]
    assert await counts(store) == [(3, 0, 0, 0)]
    assert await counts(store, "agent") == []
    assert await store.feedback_counts(TENANT, window(), "workflow") == []
    assert await store.run_feedback(TENANT, ["run-1"]) == {}
    assert await runs_of(store, RunFilter(flagged=True)) == []


async def test_expired_runs_are_no_longer_counted(store: Store) -> None:
    old = replace(ended("run-1", first=0, at=T0), agents=("core.a.b",))
    await store.append(TENANT, [old, ended("run-2", first=0, at=T0 + 10)])
    row = annotation("a", "run-1", kind="label", agent_id="core.a.b")
    await store.put_annotation(TENANT, replace(row, label="tone"))
    await store.put_annotation(TENANT, annotation("b", "run-1"))

    await store.delete_expired_runs(T0 + 1, 10)

    assert await counts(store) == [(1, 0, 0, 0)]
    assert await counts(store, "agent") == []
    assert await store.run_feedback(TENANT, ["run-1"]) == {}
    assert await runs_of(store, RunFilter(label="tone")) == []


async def test_each_tenant_counts_its_own_runs_only(store: Store) -> None:
    await three_runs(store)

    assert await store.signal_counts(OTHER, window(), "nothing") == []
    assert await store.signal_counts(TENANT, window(), "nothing") == [
        SignalCount(runs=3, flagged=0, corrected=0, intervened=0)
    ]
