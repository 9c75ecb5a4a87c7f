from __future__ import annotations

import pytest

from tests.support.rows import OTHER, T0, TENANT, agent
from wopr.protocol.errors import Conflict
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

WRITER = "local.acme.writer"


async def test_registering_the_same_manifest_twice_stores_it_once(store: Store) -> None:
    assert await store.put_agent(TENANT, agent())
    assert not await store.put_agent(TENANT, agent(at=T0 + 5))

    assert await store.agent(TENANT, WRITER, "1") == agent()


async def test_a_version_of_an_agent_cannot_be_given_other_content(store: Store) -> None:
    await store.put_agent(TENANT, agent())

    with pytest.raises(Conflict) as refused:
        await store.put_agent(TENANT, agent(body=b"other"))

    assert (refused.value.code, refused.value.status) == ("agent_exists", 409)
    assert refused.value.details == {"agentId": WRITER, "version": "1"}
    assert await store.agent(TENANT, WRITER, None) == agent()


async def test_the_version_registered_last_is_the_newest(store: Store) -> None:
    versions = [agent(version=name, at=at) for name, at in (("2", 1), ("10", 3), ("1", 3))]
    for row in versions:
        await store.put_agent(TENANT, row)

    assert await store.agent(TENANT, WRITER, None) == versions[2]
    assert await store.agent(TENANT, WRITER, "2") == versions[0]
    assert await store.agent(TENANT, WRITER, "3") is None


async def test_agents_are_listed_by_id_in_their_newest_version(store: Store) -> None:
    for name in ("c", "a", "b"):
        await store.put_agent(TENANT, agent(name, "1", at=T0))
        await store.put_agent(TENANT, agent(name, "2", at=T0 + 1))

    first = await store.agents(TENANT, None, 2)
    second = await store.agents(TENANT, first[-1].agent_id, 2)

    assert [(row.agent_id, row.version) for row in first + second] == [
        ("a", "2"),
        ("b", "2"),
        ("c", "2"),
    ]


async def test_newly_installed_agents_are_read_in_order_and_once(store: Store) -> None:
    rows = [agent("b"), agent("a"), agent("b", "2"), agent("c")]
    for row in rows[:3]:
        await store.put_agent(TENANT, row)
        await store.put_agent(OTHER, row)

    first = await store.agents_since(TENANT, 0, 2)
    second = await store.agents_since(TENANT, first[-1].place, 2)
    await store.put_agent(TENANT, rows[3])
    third = await store.agents_since(TENANT, second[-1].place, 2)

    assert first + second + third == rows
    assert await store.agents_since(TENANT, third[-1].place, 2) == []


async def test_another_tenant_s_agent_is_unknown_and_its_name_is_free(store: Store) -> None:
    await store.put_agent(TENANT, agent())

    assert await store.agent(OTHER, WRITER, None) is None
    assert await store.agent(OTHER, WRITER, "1") is None
    assert await store.agents(OTHER, None, 10) == []
    assert await store.agents_since(OTHER, 0, 10) == []

    assert await store.put_agent(OTHER, agent(body=b"theirs"))

    assert await store.agent(TENANT, WRITER, None) == agent()
