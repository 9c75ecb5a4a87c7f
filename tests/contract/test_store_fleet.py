from __future__ import annotations

import pytest

from tests.support.fleet_rows import (
    DAY,
    HOUR,
    NOON,
    aggregate,
    audit,
    batch_of,
    body,
    checkpoints,
    end,
    held_lines,
    line,
    moved,
    new_lines,
    push,
    start,
)
from tests.support.rows import OTHER, TENANT, batch
from wopr.kahn.ingest import Ingest, LineWriter
from wopr.kahn.statistics import window_starts
from wopr.protocol.errors import Conflict, Gone, Refused, SequenceTaken
from wopr.store.port import Store
from wopr.store.port.fleet import RepeatedPush, TotalsPage

pytestmark = pytest.mark.anyio


def whole(run_id: str = "r-1", agent_id: str = "coder", at: int = NOON) -> list[bytes]:
    return [
        start(run_id, agent_id, at),
        moved(run_id, 0, "response", agent_id, at + 1),
        audit(run_id, "tests:unit", "pass", agent_id, at + 2),
        end(run_id, agent_id=agent_id, at=at + 3, score=1.0),
    ]


# Lines


async def test_lines_are_read_as_they_were_written(store: Store) -> None:
    odd = b'{ "ts":"2026-03-04T12:00:00.000Z" ,"run_id":"r-1","event":"run_start","total_nodes":1,"mine":"\xe2\x80\xa8"}'
    lines = [odd, *whole()]

    await push(store, TENANT, lines[:2])
    await push(store, TENANT, lines[2:])

    assert await held_lines(store, TENANT, "r-1") == lines


@pytest.mark.parametrize("first", range(6))
async def test_lines_can_be_read_from_any_position(store: Store, first: int) -> None:
    for each in whole():
        await push(store, TENANT, [each])

    assert await held_lines(store, TENANT, "r-1", first) == whole()[first:]


async def test_lines_in_many_chunks_are_read_completely(store: Store) -> None:
    lines = [moved("r-1", step, "response", at=NOON + step) for step in range(50)]
    for each in lines:
        await push(store, TENANT, [each])

    assert await held_lines(store, TENANT, "r-1", 7) == lines[7:]


async def test_a_push_of_stored_lines_writes_nothing(store: Store) -> None:
    await push(store, TENANT, whole())
    before = await store.fleet_run(TENANT, "r-1")

    assert await push(store, TENANT, whole()) == 0
    assert await push(store, TENANT, whole()[1:3]) == 0
    assert await store.fleet_run(TENANT, "r-1") == before


async def test_a_push_that_contradicts_stored_lines_is_refused_completely(store: Store) -> None:
    await push(store, TENANT, whole())
    changed = [whole()[0], moved("r-1", 0, "failed"), *whole()[2:]]

    with pytest.raises(Conflict) as refused:
        await push(store, TENANT, [start("r-2"), *changed])

    assert refused.value.code == "would_rewrite"
    assert [each.line for each in refused.value.details["errors"]] == [3]  # type: ignore[attr-defined]  # a list of faults
    assert await store.fleet_run(TENANT, "r-2") is None
    assert await held_lines(store, TENANT, "r-1") == whole()


async def test_a_step_below_a_stored_one_is_refused(store: Store) -> None:
    await push(store, TENANT, [start("r-1"), moved("r-1", 5, "response")])

    with pytest.raises(Refused) as refused:
        await push(store, TENANT, [moved("r-1", 4, "reflect", at=NOON + 1)])

    assert [each.line for each in refused.value.details["errors"]] == [1]  # type: ignore[attr-defined]  # a list of faults
    assert await push(store, TENANT, [moved("r-1", 5, "reflect", at=NOON + 1)]) == 1
    assert await push(store, TENANT, [moved("r-1", 0, "reflect", "other", at=NOON + 1)]) == 1


# The fence


async def test_a_push_based_on_old_lines_is_refused_with_its_whole_batch(
    store: Store,
) -> None:
    found = await new_lines(store, TENANT, [*whole("r-1"), *whole("r-2")])
    await push(store, TENANT, whole("r-2"))

    with pytest.raises(SequenceTaken):
        await store.fleet_ingest(TENANT, batch_of(found))

    assert await store.fleet_run(TENANT, "r-1") is None
    assert await held_lines(store, TENANT, "r-2") == whole("r-2")
    assert [row.run_count for row in await aggregate(store, TENANT)] == [1]


async def test_lines_of_the_host_s_own_run_accept_no_further_push(store: Store) -> None:
    writer = LineWriter(store, lambda: NOON)
    ingest = Ingest(writer)
    await writer.put_own(TENANT, whole()[:2])

    assert (await ingest.push(TENANT, body(whole()[:2]))).duplicate == 2
    with pytest.raises(Conflict):
        await ingest.push(TENANT, body(whole()))

    run = await store.fleet_run(TENANT, "r-1")
    assert run is not None
    assert (run.source, run.lines) == ("host", 2)


# Reads


async def test_the_stored_lines_are_the_pushed_lines(store: Store) -> None:
    await push(store, TENANT, [*whole("r-1"), *whole("r-2")])

    held = await store.fleet_stored_runs(TENANT, ["r-2", "r-3"])

    assert list(held) == ["r-2"]
    assert held["r-2"].run == await store.fleet_run(TENANT, "r-2")
    assert len(held["r-2"].hashes) == 16 * 4
    assert list(held["r-2"].agents.values()) == await store.fleet_run_agents(TENANT, "r-2")


async def test_runs_are_listed_newest_first_page_by_page(store: Store) -> None:
    for number in range(5):
        await push(store, TENANT, [start(f"r-{number}", at=NOON + number // 2)])

    first = await store.fleet_runs(TENANT, None, 2)
    rest = await store.fleet_runs(TENANT, (first[-1].last_event, first[-1].run_id), 9)

    assert [run.run_id for run in (*first, *rest)] == ["r-4", "r-3", "r-2", "r-1", "r-0"]


async def test_runs_of_an_agent_are_listed_newest_first_within_the_window(store: Store) -> None:
    for number in range(4):
        await push(store, TENANT, [start(f"r-{number}", at=NOON + number)])
    await push(store, TENANT, [start("r-9", "other")])

    found = await store.fleet_agent_runs(TENANT, "coder", NOON + 1, (NOON + 3, "r-3"), 9)

    assert [run.run_id for run in found] == ["r-2", "r-1"]


async def test_an_agent_in_a_run_is_described_by_its_lines(store: Store) -> None:
    blocked = moved("r-1", 3, "blocked-on-clarification", at=NOON + 9)
    await push(store, TENANT, [*whole()[:3], blocked])

    [agent] = await store.fleet_run_agents(TENANT, "r-1")

    assert (agent.task, agent.status, agent.step) == ("fix it", "blocked-on-clarification", 3)
    assert (agent.started_at, agent.last_event, agent.blocked_at) == (NOON, NOON + 9, NOON + 9)
    assert (agent.audits_passed, agent.audits_failed, agent.tool_calls) == (1, 0, 0)
    assert (agent.ended_at, agent.outcome, agent.duration_s) == (None, None, None)


async def test_the_longest_wait_comes_first_and_a_continued_agent_does_not_wait(
    store: Store,
) -> None:
    for run_id, at in (("r-1", NOON + 9), ("r-2", NOON + 5), ("r-3", NOON + 7)):
        await push(store, TENANT, [moved(run_id, 0, "blocked-on-clarification", at=at)])
    await push(store, TENANT, [moved("r-3", 1, "thinking", at=NOON + 8), start("r-4")])

    waiting = await store.fleet_waiting_agents(TENANT, 10)

    assert [(agent.run_id, agent.blocked_at) for agent in waiting] == [
        ("r-2", NOON + 5),
        ("r-1", NOON + 9),
    ]
    assert [agent.run_id for agent in await store.fleet_waiting_agents(TENANT, 1)] == ["r-2"]
    assert await store.fleet_waiting_agents(OTHER, 10) == []


async def test_no_agent_waits_in_a_hidden_run(store: Store) -> None:
    await push(store, TENANT, [moved("r-1", 0, "blocked-on-clarification")])

    await store.fleet_hide([(TENANT, "r-1")], NOON)

    assert await store.fleet_waiting_agents(TENANT, 10) == []


async def test_each_run_has_its_kind_and_outcome(store: Store) -> None:
    counts = {"done": 1, "failed": 0, "blocked": 0, "total_duration_s": 2.0}
    await push(store, TENANT, [line("r-1", "run_start", total_nodes=1)])
    await push(store, TENANT, [line("r-1", "run_end", NOON + 5, outcome="clean", **counts)])
    await push(store, TENANT, [*whole("r-2"), line("r-2", "run_start", NOON + 9, total_nodes=1)])

    ci, mixed = await store.fleet_run(TENANT, "r-1"), await store.fleet_run(TENANT, "r-2")

    assert ci is not None
    assert mixed is not None
    assert (ci.kind, ci.outcome, ci.ended_at) == ("ci", "clean", NOON + 5)
    assert mixed.kind == "mixed"


async def test_an_auditor_that_only_signs_is_not_an_agent_of_the_run(store: Store) -> None:
    await push(store, TENANT, [start("r-1"), audit("r-1", "rls:policies", "fail", "audit-rls")])

    assert [row.agent_id for row in await aggregate(store, TENANT)] == ["coder"]
    assert [row.checkpoint_id for row in await checkpoints(store, TENANT)] == ["rls:policies"]


# Windows


async def test_listing_changes_no_view(store: Store) -> None:
    for number in range(30):
        await push(store, TENANT, whole(f"r-{number}", at=NOON - number * 7 * HOUR), NOON - 9 * DAY)
    before = [await aggregate(store, TENANT, window) for window in ("24h", "7d", "all")]

    await store.fleet_advance_spans(window_starts(NOON))
    await store.fleet_advance_spans(window_starts(NOON))

    assert [await aggregate(store, TENANT, window) for window in ("24h", "7d", "all")] == before
    assert [row.run_count for rows in before for row in rows] == [4, 25, 30]


async def test_a_run_in_flight_is_in_every_window(store: Store) -> None:
    await push(store, TENANT, [start("r-1", at=NOON - HOUR), start("r-2", at=NOON - 2 * DAY)])

    for window in ("7d", "all"):
        [row] = await aggregate(store, TENANT, window)
        assert (row.in_flight, row.outcomes.unknown) == (1, 2)


# Retention


async def test_runs_without_a_recent_push_are_listed_with_their_owner(store: Store) -> None:
    await push(store, TENANT, whole("old"), now=NOON - 90 * DAY)
    await push(store, OTHER, whole("older"), now=NOON - 91 * DAY)
    await push(store, TENANT, whole("new", at=NOON - 900 * DAY))

    aged = await store.fleet_expired_runs("push", NOON - 90 * DAY, NOON - 7 * DAY, 10)

    assert aged == [
        (OTHER, "older", NOON - 91 * DAY, None),
        (TENANT, "old", NOON - 90 * DAY, None),
    ]
    assert await store.fleet_expired_runs("host", NOON, NOON, 10) == []


async def test_expiring_runs_are_listed_for_their_owner_only(store: Store) -> None:
    await push(store, TENANT, whole("old"), now=NOON - 90 * DAY)
    await push(store, TENANT, whole("older"), now=NOON - 91 * DAY)
    await push(store, OTHER, whole("foreign"), now=NOON - 91 * DAY)
    await push(store, TENANT, whole("new"))

    found = await store.fleet_expiring_runs(TENANT, NOON - 90 * DAY, 10)

    assert found == [("older", NOON - 91 * DAY), ("old", NOON - 90 * DAY)]
    assert await store.fleet_expiring_runs(TENANT, NOON, 1) == [("older", NOON - 91 * DAY)]


async def test_a_run_that_gets_another_push_does_not_expire(store: Store) -> None:
    await push(store, TENANT, whole("old"), now=NOON - 90 * DAY)
    await push(store, OTHER, whole("old"), now=NOON - 90 * DAY)

    await store.fleet_repeat_push(TENANT, RepeatedPush(run_ids=("old", "unknown"), at=NOON))

    assert await store.fleet_expiring_runs(TENANT, NOON - DAY, 10) == []
    assert await store.fleet_expiring_runs(OTHER, NOON - DAY, 10) == [("old", NOON - 90 * DAY)]


async def test_a_hidden_run_is_only_exported(store: Store) -> None:
    await push(store, TENANT, [*whole("r-1"), *whole("r-2")])

    await store.fleet_hide([(TENANT, "r-1")], NOON)
    await store.fleet_hide([(TENANT, "r-1")], NOON + 1)

    assert [run.run_id for run in await store.fleet_runs(TENANT, None, 9)] == ["r-2"]
    exported = await store.fleet_runs_to_export(TENANT, "", 9)
    assert [(run.run_id, run.hidden_at) for run in exported] == [("r-1", NOON), ("r-2", None)]
    assert await held_lines(store, TENANT, "r-1") == whole("r-1")
    assert await store.fleet_size(TENANT) == 1


async def test_a_hidden_run_accepts_repeated_lines_but_no_new_ones(store: Store) -> None:
    await push(store, TENANT, whole()[:2])
    await store.fleet_hide([(TENANT, "r-1")], NOON)

    assert await push(store, TENANT, whole()[:2]) == 0
    with pytest.raises(Gone):
        await push(store, TENANT, whole())


async def test_only_a_hidden_run_is_deleted_together_with_its_observed_run(
    store: Store,
) -> None:
    await store.append(TENANT, [batch("kahn-1"), batch("kahn-2")])
    await push(store, TENANT, [*whole("r-1"), *whole("r-2")])
    await store.fleet_hide([(TENANT, "r-1")], NOON)

    await store.fleet_delete([(TENANT, "r-1", "kahn-1"), (TENANT, "r-2", "kahn-2")])

    assert await store.fleet_run(TENANT, "r-1") is None
    assert await held_lines(store, TENANT, "r-1") == []
    assert await store.run(TENANT, "kahn-1") is None
    assert await held_lines(store, TENANT, "r-2") == whole("r-2")
    assert await store.run(TENANT, "kahn-2") is not None
    assert await push(store, TENANT, whole("r-1")) == 4


# Tenants


async def test_tenants_do_not_see_each_other_s_fleet(store: Store) -> None:
    await push(store, TENANT, whole())
    mine = [start("r-1", at=NOON + 5)]
    await push(store, OTHER, mine)

    assert await held_lines(store, OTHER, "r-1") == mine
    assert await held_lines(store, TENANT, "r-1") == whole()
    assert [row.outcomes.unknown for row in await aggregate(store, OTHER)] == [1]
    assert await checkpoints(store, OTHER) == []
    assert len((await store.fleet_stored_runs(OTHER, ["r-1"]))["r-1"].hashes) == 16
    await store.fleet_hide([(TENANT, "r-1")], NOON)
    assert [run.run_id for run in await store.fleet_runs(OTHER, None, 9)] == ["r-1"]


async def test_a_tenant_without_lines_has_an_empty_fleet(store: Store) -> None:
    assert await aggregate(store, TENANT, "24h") == []
    assert await checkpoints(store, TENANT, "7d") == []
    assert await store.fleet_size(TENANT) == 0
    assert await store.fleet_stored_runs(TENANT, ["r-1"]) == {}
    assert await store.fleet_runs_to_export(TENANT, "", 9) == []
    await store.fleet_advance_spans(window_starts(NOON))


# Pages of totals


async def names(store: Store, page: TotalsPage) -> list[str]:
    found = await store.fleet_totals(
        TENANT, "all", window_starts(NOON), page, quantiles=(0.5,), scores=3
    )
    return [each.agent_id for each in found]


async def test_agents_are_listed_page_by_page_busiest_first(store: Store) -> None:
    for place, agent_id in enumerate(["a", "b", "b", "c", "c", "c"]):
        await push(store, TENANT, whole(f"r-{place}", agent_id))

    assert await names(store, TotalsPage(limit=2)) == ["b", "c"]
    assert await names(store, TotalsPage(limit=2, start=2)) == ["a"]
    assert await names(store, TotalsPage(limit=2, start=4)) == []
    assert await names(store, TotalsPage(limit=1, agent_id="a")) == ["a"]
    assert await names(store, TotalsPage(limit=1, agent_id="d")) == []


async def test_agents_that_failed_are_on_the_first_page_by_severity(store: Store) -> None:
    await push(store, TENANT, [*whole("r-1", "busy"), *whole("r-2", "busy")])
    await push(store, TENANT, [start("r-3", "fails"), end("r-3", "escaped", agent_id="fails")])

    assert await names(store, TotalsPage(limit=1, sort="severity")) == ["fails"]


async def test_checkpoints_are_listed_page_by_page_most_uncertain_first(store: Store) -> None:
    for place, (name, result) in enumerate(
        [("even", "pass"), ("even", "fail"), ("sure", "pass"), ("sure", "pass"), ("rare", "warn")]
    ):
        await push(store, TENANT, [start(f"r-{place}"), audit(f"r-{place}", name, result)])

    pages = [
        await store.fleet_checkpoints(TENANT, "all", window_starts(NOON), limit=1, start=place)
        for place in range(4)
    ]

    assert [[each.checkpoint_id for each in page] for page in pages] == [
        ["even"],
        ["sure"],
        ["rare"],
        [],
    ]
