from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.feedback_rows import DAY, HOUR, MIDNIGHT, annotation, rated, totals, window
from tests.support.rows import OTHER, T0, TENANT, answer, batch, ended
from wopr.protocol.errors import Conflict, NotFound
from wopr.store.open import open_store
from wopr.store.port import Store
from wopr.store.port.audit import AuditDraft
from wopr.store.port.feedback import AnnotationRow, GroupBy

pytestmark = pytest.mark.anyio


async def ids(store: Store, run_id: str = "run-1", tenant: str = TENANT) -> list[str]:
    rows = await store.annotations(tenant, run_id, None, 1000)
    return [row.annotation_id for row in rows]


async def test_annotations_come_oldest_first_and_then_by_id(store: Store) -> None:
    await store.append(TENANT, [batch()])
    for name, at in (("c", T0 + 1), ("b", T0 + 2), ("a", T0 + 2), ("d", T0)):
        await store.put_annotation(TENANT, annotation(name, at=at))

    assert await ids(store) == ["d", "c", "a", "b"]


async def test_an_annotation_is_read_as_it_was_written(store: Store) -> None:
    await store.append(TENANT, [batch()])
    row = rated("a", 4, agent_id="core.acme.writer", node_id="draft")

    await store.put_annotation(TENANT, row)

    assert await store.annotations(TENANT, "run-1", None, 10) == [row]


async def test_pages_of_annotations_have_no_gap(store: Store) -> None:
    await store.append(TENANT, [batch()])
    wanted = [f"ann-{n:03}" for n in range(250)]
    for name in wanted:
        await store.put_annotation(TENANT, annotation(name))

    found: list[str] = []
    after: tuple[int, str] | None = None
    while page := await store.annotations(TENANT, "run-1", after, 120):
        found += [row.annotation_id for row in page]
        after = (page[-1].created_at, page[-1].annotation_id)

    assert found == wanted


async def test_annotations_belong_to_their_run(store: Store) -> None:
    await store.append(TENANT, [batch("run-1"), batch("run-2")])
    await store.put_annotation(TENANT, annotation("a", "run-1"))
    await store.put_annotation(TENANT, annotation("b", "run-2"))

    assert await ids(store, "run-1") == ["a"]
    assert await ids(store, "run-2") == ["b"]


async def test_another_tenant_neither_reads_nor_writes_annotations(store: Store) -> None:
    await store.append(TENANT, [batch()])
    await store.put_annotation(TENANT, annotation("a"))

    with pytest.raises(NotFound):
        await store.put_annotation(OTHER, annotation("b"))

    assert await ids(store, tenant=OTHER) == []
    assert await ids(store) == ["a"]
    assert await store.feedback_counts(OTHER, window(), "workflow") == []


async def test_an_unknown_run_accepts_no_annotation(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.put_annotation(TENANT, annotation(run_id="nowhere"))

    assert totals(await store.feedback_counts(TENANT, window(), "nothing")) == (0, 0, 0, 0, 0)


async def test_the_response_is_stored_with_the_annotation(store: Store) -> None:
    await store.append(TENANT, [batch()])

    await store.put_annotation(TENANT, annotation("a"), answer(b"key"))

    assert await store.idempotency_record(TENANT, b"key") == answer(b"key")


async def test_a_used_idempotency_key_stores_no_annotation(store: Store) -> None:
    await store.append(TENANT, [batch()])
    await store.put_annotation(TENANT, annotation("a"), answer(b"key"))

    with pytest.raises(Conflict, match="came first"):
        await store.put_annotation(TENANT, annotation("b"), answer(b"key"))

    assert await ids(store) == ["a"]
    assert totals(await store.feedback_counts(TENANT, window(), "nothing"))[4] == 1


async def test_the_audit_entry_is_written_with_the_annotation_or_not_at_all(store: Store) -> None:
    draft = AuditDraft(tenant=TENANT, link=lambda sequence, _: f"entry {sequence}".encode())
    await store.append(TENANT, [batch()])

    await store.put_annotation(TENANT, replace(annotation("a"), audit=draft))
    with pytest.raises(NotFound):
        await store.put_annotation(TENANT, replace(annotation("b", "nowhere"), audit=draft))

    entries = await store.audit_page(TENANT, None, 10)
    assert [entry.body for entry in entries] == [b"entry 0"]


async def test_annotations_do_not_change_their_run(store: Store) -> None:
    await store.append(TENANT, [batch(), ended()])
    before = await store.run(TENANT, "run-1")

    await store.put_annotation(TENANT, annotation())

    assert await store.run(TENANT, "run-1") == before
    assert len(await store.read(TENANT, "run-1")) == 2


async def test_annotations_and_counts_are_deleted_with_their_run(store: Store) -> None:
    await store.append(TENANT, [ended("old", first=0, at=T0), batch("open")])
    await store.put_annotation(TENANT, rated("a", 2, run_id="old"))
    await store.put_annotation(TENANT, rated("b", 5, run_id="open"))

    await store.delete_expired_runs(T0 + 1, 10)

    assert await ids(store, "old") == []
    assert await ids(store, "open") == ["b"]
    assert totals(await store.feedback_counts(TENANT, window(), "workflow")) == (1, 5, 0, 0, 0)


async def test_annotations_survive_a_restart(store: Store, store_url: str) -> None:
    await store.append(TENANT, [batch()])
    await store.put_annotation(TENANT, rated("a", 3))
    await store.close()

    again = await open_store(store_url)

    assert await ids(again) == ["a"]
    assert totals(await again.feedback_counts(TENANT, window(), "agent")) == (1, 3, 0, 0, 0)
    await again.close()


# Counts


GROUPS: list[tuple[GroupBy, dict[tuple[str, str, str], int]]] = [
    ("workflow", {("greet", "", ""): 3, ("sort", "", ""): 1}),
    ("agent", {("", "x", ""): 2, ("", "y", ""): 2}),
    ("node", {("greet", "", "a"): 2, ("greet", "", "b"): 1, ("sort", "", "a"): 1}),
    ("nothing", {("", "", ""): 4}),
]


@pytest.mark.parametrize(("by", "expected"), GROUPS)
async def test_annotations_are_counted_by_group(
    store: Store, by: GroupBy, expected: dict[tuple[str, str, str], int]
) -> None:
    await store.append(TENANT, [batch()])
    for name, (workflow_id, agent_id, node_id) in enumerate(
        [("greet", "x", "a"), ("greet", "x", "b"), ("greet", "y", "a"), ("sort", "y", "a")]
    ):
        row = annotation(str(name), workflow_id=workflow_id, agent_id=agent_id, node_id=node_id)
        await store.put_annotation(TENANT, row)

    counts = await store.feedback_counts(TENANT, window(), by)

    assert {(c.workflow_id, c.agent_id, c.node_id): c.flags for c in counts} == expected


async def test_counts_can_be_limited_to_a_workflow_and_an_agent(store: Store) -> None:
    await store.append(TENANT, [batch()])
    await store.put_annotation(TENANT, rated("a", 1, workflow_id="greet", agent_id="x"))
    await store.put_annotation(TENANT, rated("b", 2, workflow_id="greet", agent_id="y"))
    await store.put_annotation(TENANT, rated("c", 4, workflow_id="sort", agent_id="x"))

    by_workflow = await store.feedback_counts(TENANT, window(workflow_id="greet"), "nothing")
    by_both = await store.feedback_counts(
        TENANT, window(workflow_id="greet", agent_id="x"), "agent"
    )

    assert totals(by_workflow)[:2] == (2, 3)
    assert totals(by_both)[:2] == (1, 1)


async def test_a_short_window_is_counted_by_hour(store: Store) -> None:
    await store.append(TENANT, [batch()])
    for name, at in (("a", MIDNIGHT), ("b", MIDNIGHT + HOUR - 1), ("c", MIDNIGHT + HOUR)):
        await store.put_annotation(TENANT, annotation(name, at=at))

    counts = await store.feedback_counts(TENANT, window(), "time")

    assert {c.bucket: c.flags for c in counts} == {MIDNIGHT: 2, MIDNIGHT + HOUR: 1}


async def test_a_long_window_is_counted_by_day_and_cut_at_its_edges(store: Store) -> None:
    await store.append(TENANT, [batch()])
    noon = MIDNIGHT + 12 * HOUR
    for name, at in (("a", noon - 1), ("b", noon), ("c", noon + 2 * DAY), ("d", noon + 4 * DAY)):
        await store.put_annotation(TENANT, annotation(name, at=at))

    counts = await store.feedback_counts(TENANT, window(noon, noon + 4 * DAY), "time")

    assert {c.bucket: c.flags for c in counts} == {MIDNIGHT: 1, MIDNIGHT + 2 * DAY: 1}


KINDS = st.sampled_from(["rating", "correction", "label", "flag"])


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 5 * DAY // HOUR), st.sampled_from("xy"), KINDS, st.integers(1, 5)),
        max_size=25,
    ),
    edges=st.tuples(st.integers(0, 5 * 24), st.integers(1, 5 * 24)),
    gone=st.sampled_from(["run-x", "run-y", None]),
    by=st.sampled_from(["workflow", "agent", "node", "time", "nothing"]),
)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_counts_of_any_window_are_those_of_its_annotations(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, str, str, int]],
    edges: tuple[int, int],
    gone: str | None,
    by: GroupBy,
) -> None:
    since = MIDNIGHT + edges[0] * HOUR
    where = window(since, since + edges[1] * HOUR)
    stored = [
        AnnotationRow(
            annotation_id=str(name),
            run_id=f"run-{which}",
            workflow_id=which,
            agent_id=which * 2,
            kind=kind,
            rating=stars if kind == "rating" else None,
            created_at=MIDNIGHT + hour * HOUR + name,
            body=b"{}",
        )
        for name, (hour, which, kind, stars) in enumerate(rows)
    ]
    kept = [row for row in stored if row.run_id != gone]
    inside = [row for row in kept if where.since <= row.created_at < where.until]

    async def counted() -> tuple[int, ...]:
        url = f"sqlite:///{tmp_path_factory.mktemp('counts') / 'wopr.db'}"
        store = await open_store(url)
        try:
            for run_id in ("run-x", "run-y"):
                at = T0 if run_id == gone else T0 + DAY
                await store.append(TENANT, [ended(run_id, first=0, at=at)])
            for row in stored:
                await store.put_annotation(TENANT, row)
            await store.delete_expired_runs(T0 + 1, 10)
            return totals(await store.feedback_counts(TENANT, where, by))
        finally:
            await store.close()

    assert anyio.run(counted) == (
        sum(row.kind == "rating" for row in inside),
        sum(row.rating or 0 for row in inside),
        sum(row.kind == "correction" for row in inside),
        sum(row.kind == "label" for row in inside),
        sum(row.kind == "flag" for row in inside),
    )


# Finding an event


async def test_an_event_is_found_by_its_id_in_its_own_run_only(store: Store) -> None:
    bodies = [f'{{"eventId":"e{n}","causationId":"e{n - 1}"}}'.encode() for n in range(60)]
    steps = batch(count=60)
    events = tuple(
        type(event)(sequence=event.sequence, type=event.type, body=body)
        for event, body in zip(steps.events, bodies, strict=True)
    )
    await store.append(TENANT, [type(steps)(run=steps.run, first=0, events=events), batch("run-2")])

    found = await store.event(TENANT, "run-1", "e41")

    assert found is not None
    assert (found.sequence, found.body) == (41, bodies[41])
    assert await store.event(TENANT, "run-1", "e-1") is None
    assert await store.event(TENANT, "run-1", "e4") is not None
    assert await store.event(TENANT, "run-2", "e41") is None
    assert await store.event(OTHER, "run-1", "e41") is None


async def test_an_event_is_found_behind_many_that_mention_it(store: Store) -> None:
    steps = batch(count=50)
    bodies = [f'{{"eventId":"e{n}","payload":"e49"}}'.encode() for n in range(50)]
    events = tuple(
        type(event)(sequence=event.sequence, type=event.type, body=body)
        for event, body in zip(steps.events, bodies, strict=True)
    )
    await store.append(TENANT, [type(steps)(run=steps.run, first=0, events=events)])

    found = await store.event(TENANT, "run-1", "e49")

    assert found is not None
    assert found.sequence == 49
