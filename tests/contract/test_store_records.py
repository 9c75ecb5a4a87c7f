from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.rows import OTHER, T0, TENANT, answer, invocation, key, workflow
from wopr.protocol.errors import Conflict
from wopr.store.port import Store

pytestmark = pytest.mark.anyio


async def test_registering_the_same_workflow_twice_stores_it_once(store: Store) -> None:
    assert await store.put_workflow(TENANT, workflow())
    assert not await store.put_workflow(TENANT, workflow(at=T0 + 5))

    assert await store.workflow(TENANT, "greet", "1") == workflow()


async def test_a_version_cannot_be_given_other_content(store: Store) -> None:
    await store.put_workflow(TENANT, workflow())

    with pytest.raises(Conflict) as refused:
        await store.put_workflow(TENANT, workflow(body=b"other"))

    assert refused.value.code == "workflow_exists"
    assert await store.workflow(TENANT, "greet", None) == workflow()


async def test_the_version_registered_last_is_the_newest(store: Store) -> None:
    versions = [workflow(version=name, at=at) for name, at in (("2", 1), ("10", 3), ("1", 3))]
    for row in versions:
        await store.put_workflow(TENANT, row)

    assert await store.workflow(TENANT, "greet", None) == versions[2]
    assert await store.workflow(TENANT, "greet", "2") == versions[0]
    assert await store.workflow(TENANT, "greet", "3") is None
    assert await store.workflow_versions(TENANT, "greet", 10, 0) == versions[::-1]
    assert await store.workflow_versions(TENANT, "greet", 1, 1) == [versions[1]]
    assert await store.workflow_versions(TENANT, "greet", 10, 3) == []


async def test_workflows_are_listed_by_id_in_their_newest_version(store: Store) -> None:
    for name in ("c", "a", "b"):
        await store.put_workflow(TENANT, workflow(name, "1", at=T0))
        await store.put_workflow(TENANT, workflow(name, "2", at=T0 + 1))

    first = await store.workflows(TENANT, None, 2)
    second = await store.workflows(TENANT, first[-1].workflow_id, 2)

    assert [(row.workflow_id, row.version) for row in first + second] == [
        ("a", "2"),
        ("b", "2"),
        ("c", "2"),
    ]


async def test_lists_of_workflows_have_no_definitions(store: Store) -> None:
    for name in ("c", "a", "b"):
        await store.put_workflow(TENANT, workflow(name, "1"))
        await store.put_workflow(TENANT, workflow(name, "2"))

    assert await store.workflow_ids(TENANT, 2) == ["a", "b"]
    assert await store.workflow_ids(TENANT, 9) == ["a", "b", "c"]


async def test_workflow_ids_are_found_within_their_tenant(store: Store) -> None:
    await store.put_workflow(TENANT, workflow("a"))
    await store.put_workflow(OTHER, workflow("b"))

    assert await store.known_workflows(TENANT, ["a", "b", "c", "a\0"]) == {"a"}
    assert await store.known_workflows(TENANT, []) == set()


async def test_a_key_is_found_by_its_hash(store: Store) -> None:
    row = replace(key(), is_test=True, expires_at=T0 + 9)

    await store.put_key(row)

    assert await store.key_by_hash(row.key_hash) == row
    assert await store.key_by_hash(b"unknown") is None


async def test_a_key_cannot_be_stored_twice(store: Store) -> None:
    await store.put_key(key())

    with pytest.raises(Conflict):
        await store.put_key(replace(key(), tenant=OTHER))

    assert await store.keys() == [key()]


async def test_keys_are_listed_newest_first_for_one_tenant_or_all(store: Store) -> None:
    rows = [key("k1", at=T0), key("k2", OTHER, at=T0 + 1), key("k3", at=T0 + 2)]
    for row in rows:
        await store.put_key(row)

    assert await store.keys() == rows[::-1]
    assert await store.keys(TENANT) == [rows[2], rows[0]]


async def test_a_key_is_rotated_and_revoked_field_by_field(store: Store) -> None:
    await store.put_key(key())

    assert await store.update_key("key-1", expires_at=T0 + 5, replaced_by="key-2")
    assert await store.update_key("key-1", revoked_at=T0 + 3)
    assert not await store.update_key("unknown", revoked_at=T0)

    expected = replace(key(), expires_at=T0 + 5, replaced_by="key-2", revoked_at=T0 + 3)
    assert await store.keys() == [expected]


async def test_the_first_stored_response_is_kept(store: Store) -> None:
    assert await store.idempotency_record(TENANT, b"k") is None

    await store.put_idempotency_record(TENANT, answer(body=b"first"))
    await store.put_idempotency_record(TENANT, answer(body=b"second"))

    assert await store.idempotency_record(TENANT, b"k") == answer(body=b"first")


async def test_one_of_many_reservations_wins_and_the_others_get_its_values(store: Store) -> None:
    claims = [invocation(run_id=f"run-{n}", at=T0 + n) for n in range(30)]

    held = await asyncio.gather(*(store.claim_invocation(TENANT, claim) for claim in claims))

    assert len(set(held)) == 1
    assert held[0] in claims


async def test_a_settled_invocation_keeps_its_first_outcome(store: Store) -> None:
    await store.claim_invocation(TENANT, invocation())

    await store.settle_invocation(TENANT, "i-1", "succeeded", b"42")
    await store.settle_invocation(TENANT, "i-1", "failed", b"late")

    expected = replace(invocation(), state="succeeded", outcome=b"42")
    assert await store.claim_invocation(TENANT, invocation(at=T0 + 9)) == expected
