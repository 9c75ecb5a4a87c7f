from __future__ import annotations

import pytest

from tests.support.rows import OTHER, T0, TENANT, batch, memory
from wopr.protocol.errors import Refused
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

UNREADABLE = ["", "x" * 257, "a\x00b", "../notes", "a/../notes", "notes/..", "./notes", "\ud800"]


async def ids(store: Store, tenant: str = TENANT, ref: str = "notes", **view: object) -> list[str]:
    rows = await store.memories(tenant, ref, **{"now": T0 + 50, **view})  # type: ignore[arg-type]  # tests name what they ask for
    return [row.memory_id for row in rows]


async def test_an_entry_is_read_as_it_was_written(store: Store) -> None:
    row = memory(content="a fact", tags=("blue", "red"), expires_at=T0 + 99)

    assert await store.put_memory(TENANT, row)

    assert await store.memories(TENANT, "notes", now=T0) == [row]
    assert await store.memory(TENANT, "notes", "m-1", T0) == row
    assert await store.memory(TENANT, "notes", "m-2", T0) is None


async def test_entries_are_listed_newest_first_up_to_the_requested_number(store: Store) -> None:
    for n, at in enumerate((T0, T0 + 2, T0 + 1, T0 + 2)):
        await store.put_memory(TENANT, memory(f"m-{n}", at=at))
    await store.put_memory(TENANT, memory("elsewhere", "other-notes"))

    assert await ids(store) == ["m-3", "m-1", "m-2", "m-0"]
    assert await ids(store, limit=2) == ["m-3", "m-1"]


async def test_a_tag_selects_the_entries_that_have_it(store: Store) -> None:
    await store.put_memory(TENANT, memory("m-1", tags=("blue",)))
    await store.put_memory(TENANT, memory("m-2", at=T0 + 1, tags=("red", "blue", "red")))
    await store.put_memory(TENANT, memory("m-3", at=T0 + 2))

    assert await ids(store, tag="blue") == ["m-2", "m-1"]
    assert await ids(store, tag="red") == ["m-2"]
    assert await ids(store, tag="blu") == []
    assert await ids(store, tag="\ud800") == []


async def test_an_expired_entry_is_never_read(store: Store) -> None:
    await store.put_memory(TENANT, memory("old", tags=("t",), expires_at=T0 + 10))
    await store.put_memory(TENANT, memory("new", tags=("t",), expires_at=T0 + 11))

    for tag in (None, "t"):
        assert await ids(store, now=T0 + 9, tag=tag) == ["new", "old"]
        assert await ids(store, now=T0 + 10, tag=tag) == ["new"]
    assert await store.memory(TENANT, "notes", "old", T0 + 10) is None
    assert await store.memory(TENANT, "notes", "new", T0 + 10) is not None


async def test_an_already_expired_entry_can_be_written(store: Store) -> None:
    assert await store.put_memory(TENANT, memory(expires_at=T0 - 1))

    assert await ids(store, now=T0) == []


async def test_a_run_sees_entries_from_before_its_start_and_its_own(store: Store) -> None:
    await store.put_memory(TENANT, memory("before", at=T0, run_id="other", tags=("t",)))
    await store.put_memory(TENANT, memory("during", at=T0 + 2, run_id="other", tags=("t",)))
    await store.put_memory(TENANT, memory("own", at=T0 + 3, run_id="mine", tags=("t",)))

    for tag in (None, "t"):
        seen = await ids(store, visible_to_run="mine", run_started_at=T0, tag=tag)
        assert seen == ["own", "before"]
    assert await ids(store) == ["own", "during", "before"]


async def test_a_run_sees_entries_of_its_descendants_once_they_completed(
    store: Store,
) -> None:
    family = {
        "child": ("mine", "completed"),
        "grandchild": ("child", "completed"),
        "failed": ("mine", "failed"),
        "running": ("mine", "running"),
        "below-running": ("running", "completed"),
        "stranger": (None, "completed"),
    }
    for name, (parent, status) in family.items():
        ended = None if status == "running" else T0 + 9
        row = batch(name, parent_run_id=parent, status=status, ended_at=ended, wake_at=None)
        await store.append(TENANT, [row])
        await store.put_memory(TENANT, memory(f"of-{name}", at=T0 + 2, run_id=name, tags=("t",)))

    for tag in (None, "t"):
        seen = await ids(store, visible_to_run="mine", run_started_at=T0, tag=tag)
        assert sorted(seen) == ["of-child", "of-grandchild"]
    assert await ids(store, visible_to_run="child", run_started_at=T0) == [
        "of-grandchild",
        "of-child",
    ]


async def test_the_descendants_of_a_run_belong_to_its_tenant(store: Store) -> None:
    row = batch("child", parent_run_id="mine", status="completed", ended_at=T0, wake_at=None)
    await store.append(OTHER, [row])
    await store.put_memory(TENANT, memory(at=T0 + 2, run_id="child"))

    assert await ids(store, visible_to_run="mine", run_started_at=T0) == []


async def test_one_entry_has_the_same_visibility_rule(store: Store) -> None:
    await store.put_memory(TENANT, memory(at=T0 + 2, run_id="other"))

    hidden = await store.memory(
        TENANT, "notes", "m-1", T0 + 5, visible_to_run="mine", run_started_at=T0
    )
    shown = await store.memory(
        TENANT, "notes", "m-1", T0 + 5, visible_to_run="other", run_started_at=T0
    )

    assert hidden is None
    assert shown == memory(at=T0 + 2, run_id="other")


async def test_the_first_entry_under_an_id_is_kept(store: Store) -> None:
    await store.put_memory(TENANT, memory(content="first", tags=("a",)))

    assert not await store.put_memory(TENANT, memory(content="second", at=T0 + 1, tags=("b",)))

    assert await store.memory(TENANT, "notes", "m-1", T0) == memory(content="first", tags=("a",))
    assert await ids(store, tag="b") == []


async def test_the_id_of_an_expired_entry_is_free_again(store: Store) -> None:
    await store.put_memory(TENANT, memory(tags=("a",), expires_at=T0 + 1))

    assert await store.put_memory(TENANT, memory(content="new", at=T0 + 1, tags=("b",)))

    assert await ids(store, tag="a") == []
    assert await ids(store, tag="b") == ["m-1"]


async def test_expired_entries_are_deleted_and_the_rest_stays(store: Store) -> None:
    for n in range(3):
        await store.put_memory(TENANT, memory(f"m-{n}", tags=("t",), expires_at=T0 + n))
    await store.put_memory(OTHER, memory(expires_at=T0))
    await store.put_memory(TENANT, memory("for ever", at=T0 - 9))

    await store.delete_expired_memories(T0 + 2)

    # Before that time, only the deleted entries are missing.
    assert await ids(store, now=0) == ["m-2", "for ever"]
    assert await ids(store, OTHER, now=0) == []
    assert await ids(store, now=0, tag="t") == ["m-2"]


async def test_any_number_of_entries_is_deleted_in_one_call(store: Store) -> None:
    for n in range(600):
        await store.put_memory(TENANT, memory(f"m-{n}", expires_at=T0))

    await store.delete_expired_memories(T0 + 1)

    assert await ids(store, now=0, limit=1000) == []


@pytest.mark.parametrize("ref", UNREADABLE)
async def test_an_invalid_reference_reads_as_empty(store: Store, ref: str) -> None:
    assert await ids(store, ref=ref) == []
    assert await store.memory(TENANT, ref, "m-1", T0) is None


async def test_an_invalid_id_reads_as_absent(store: Store) -> None:
    for memory_id in ("", "x" * 1501, "\x00", "\udfff"):
        assert await store.memory(TENANT, "notes", memory_id, T0) is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(({"ref": ref}, "memoryRef") for ref in UNREADABLE),
        ({"memory_id": ""}, "id"),
        ({"memory_id": "x" * 1501}, "id"),
        ({"tags": ("",)}, "tags"),
        ({"tags": ("x" * 257,)}, "tags"),
        ({"content": "\ud800"}, "content"),
    ],
)
async def test_an_unreadable_entry_is_not_written(
    store: Store, changes: dict[str, object], field: str
) -> None:
    with pytest.raises(Refused) as refused:
        await store.put_memory(TENANT, memory(**changes))  # type: ignore[arg-type]  # see ids()

    assert refused.value.details == {"field": field}


async def test_another_tenant_s_memory_reads_as_empty_and_its_names_are_free(store: Store) -> None:
    await store.put_memory(TENANT, memory(tags=("t",)))

    assert await ids(store, OTHER) == []
    assert await ids(store, OTHER, tag="t") == []
    assert await ids(store, OTHER, visible_to_run="run-1", run_started_at=0) == []
    assert await store.memory(OTHER, "notes", "m-1", T0) is None

    assert await store.put_memory(OTHER, memory(content="theirs", tags=("t",)))

    assert await store.memory(TENANT, "notes", "m-1", T0) == memory(tags=("t",))
    assert await ids(store, tag="t") == ["m-1"]
