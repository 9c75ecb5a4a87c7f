from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.feedback_rows import annotation, judge, pending
from tests.support.rows import OTHER, T0, TENANT, batch, ended
from wopr.protocol.errors import NotFound
from wopr.store.open import open_store
from wopr.store.port import Store
from wopr.store.port.feedback import JudgedRow

pytestmark = pytest.mark.anyio


async def states(store: Store, judge_id: str = "j-1") -> dict[str, str]:
    rows = await store.judged_runs(TENANT, judge_id, -1, 100)
    return {row.run_id: row.state for row in rows}


async def test_a_judge_is_stored_with_its_runs_in_order(store: Store) -> None:
    await store.put_judge(TENANT, judge(), pending("c", "a", "b", "a"))

    rows = await store.judged_runs(TENANT, "j-1", -1, 10)

    assert [row.run_id for row in rows] == ["c", "a", "b"]
    assert [r.run_id for r in await store.judged_runs(TENANT, "j-1", rows[0].place, 1)] == ["a"]
    assert await store.judge(TENANT, "j-1") == judge()
    assert await store.judge(OTHER, "j-1") is None
    assert await store.judged_runs(OTHER, "j-1", -1, 10) == []


async def test_open_judges_are_found_across_tenants(store: Store) -> None:
    await store.put_judge(TENANT, judge("j-2", T0 + 1), pending("a"))
    await store.put_judge(OTHER, judge("j-1", T0), pending("b"))
    await store.put_judge(TENANT, replace(judge("j-3"), is_done=True), [])

    assert await store.open_judges(10) == [(OTHER, "j-1"), (TENANT, "j-2")]
    await store.close_judge(OTHER, "j-2")
    await store.close_judge(TENANT, "j-2")
    assert await store.open_judges(10) == [(OTHER, "j-1")]


async def test_items_are_found_by_state_and_counted(store: Store) -> None:
    await store.put_judge(TENANT, judge(), pending("a", "b", "c"))

    moved = JudgedRow(run_id="b", state="running", judge_run_id="judging")
    assert await store.set_judged_state(TENANT, "j-1", moved)

    [running] = await store.judged_runs(TENANT, "j-1", -1, 10, "running")
    assert (running.run_id, running.judge_run_id) == ("b", "judging")
    assert await store.judged_run_counts(TENANT, "j-1") == {"pending": 2, "running": 1}
    assert await store.judged_run_counts(OTHER, "j-1") == {}


async def test_a_run_is_settled_once_and_its_annotation_stored_with_it(store: Store) -> None:
    await store.append(TENANT, [batch()])
    await store.put_judge(TENANT, judge(), pending("run-1"))
    done = JudgedRow(run_id="run-1", state="annotated", annotation_id="ann-1")

    assert await store.set_judged_state(TENANT, "j-1", done, annotation())
    assert not await store.set_judged_state(TENANT, "j-1", done, annotation("ann-2"))

    rows = await store.annotations(TENANT, "run-1", None, 10)
    assert [row.annotation_id for row in rows] == ["ann-1"]


async def test_another_tenant_cannot_settle_a_run(store: Store) -> None:
    await store.put_judge(TENANT, judge(), pending("run-1"))

    assert not await store.set_judged_state(OTHER, "j-1", JudgedRow(run_id="run-1", state="failed"))

    assert await states(store) == {"run-1": "pending"}


async def test_a_deleted_run_accepts_no_annotation(store: Store) -> None:
    await store.put_judge(TENANT, judge(), pending("run-1"))

    with pytest.raises(NotFound):
        await store.set_judged_state(
            TENANT, "j-1", JudgedRow(run_id="run-1", state="annotated"), annotation()
        )

    assert await states(store) == {"run-1": "pending"}


async def test_an_expired_run_is_removed_from_its_judges(store: Store) -> None:
    await store.append(TENANT, [ended("old", first=0, at=T0), batch("open")])
    await store.put_judge(TENANT, judge(), pending("old", "open"))

    await store.delete_expired_runs(T0 + 1, 10)

    assert await states(store) == {"open": "pending"}


async def test_the_work_of_a_judge_survives_a_restart(store: Store, store_url: str) -> None:
    await store.put_judge(TENANT, judge(), pending("a", "b"))
    await store.set_judged_state(TENANT, "j-1", JudgedRow(run_id="a", state="failed", reason="no"))
    await store.close()

    again = await open_store(store_url)

    assert await states(again) == {"a": "failed", "b": "pending"}
    assert await again.open_judges(10) == [(TENANT, "j-1")]
    await again.close()
