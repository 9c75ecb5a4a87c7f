from __future__ import annotations

import msgspec
import pytest

from wopr.agents.memory import (
    END_OF_CALENDAR,
    LIST_DEFAULT,
    MAX_ENTRY_BYTES,
    AgentMemory,
    MemoryScope,
)
from wopr.protocol.errors import Refused
from wopr.protocol.resources.memory import MemoryListOptions
from wopr.security.redact import Redactor
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

T0 = 1_700_000_000_000
MINE = MemoryScope(tenant="acme", memory_ref="notes", run_id="mine", run_started_at=T0)
OTHERS = MemoryScope(tenant="acme", memory_ref="notes", run_id="other", run_started_at=T0)
ONLOOKER = MemoryScope(tenant="acme", memory_ref="notes", run_id="nobody")
FOREIGN = MemoryScope(tenant="globex", memory_ref="notes", run_id="theirs")


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(store: Store, clock: Clock) -> AgentMemory:
    return AgentMemory(store, clock)


@pytest.fixture
def redactor() -> Redactor:
    made = Redactor()
    made.register("conformance-test-secret", "open sesame now")
    return made


async def test_a_run_reads_its_own_memory_writes(memory: AgentMemory, redactor: Redactor) -> None:
    written = await memory.put(MINE, "m-1", "a fact", redactor=redactor, tags=["blue", "", "blue"])

    assert msgspec.to_builtins(written) == {
        "id": "m-1",
        "content": "a fact",
        "tags": ["blue"],
        "createdAt": "2023-11-14T22:13:20.001Z",
    }
    assert await memory.list(MINE) == [written]
    assert await memory.get(MINE, "m-1") == written


async def test_no_secret_reaches_the_memory_store(
    memory: AgentMemory, store: Store, redactor: Redactor
) -> None:
    tags = ["tag open sesame now"]
    await memory.put(MINE, "m-1", "say open sesame now!", redactor=redactor, tags=tags)

    [row] = await store.memories("acme", "notes", now=T0)

    assert row.content == "say [REDACTED:conformance-test-secret]!"
    assert row.tags == ("tag [REDACTED:conformance-test-secret]",)


async def test_an_expired_entry_is_not_read(
    memory: AgentMemory, redactor: Redactor, clock: Clock
) -> None:
    await memory.put(MINE, "old", "x", redactor=redactor, expires_at=T0 - 1)
    await memory.put(MINE, "new", "x", redactor=redactor, expires_at=T0 + 1000)

    assert [entry.id for entry in await memory.list(MINE)] == ["new"]
    assert await memory.get(MINE, "old") is None
    clock.now = T0 + 1000
    assert await memory.list(MINE) == []


async def test_writes_of_concurrent_runs_are_not_seen(
    memory: AgentMemory, redactor: Redactor
) -> None:
    await memory.put(OTHERS, "m-1", "x", redactor=redactor)

    assert await memory.list(MINE) == []
    assert await memory.get(MINE, "m-1") is None
    assert [entry.id for entry in await memory.list(ONLOOKER)] == ["m-1"]
    assert await memory.get(ONLOOKER, "m-1") is not None


async def test_another_tenant_s_memory_of_the_same_name_is_empty(
    memory: AgentMemory, redactor: Redactor
) -> None:
    await memory.put(MINE, "m-1", "x", redactor=redactor)

    assert await memory.list(FOREIGN) == []
    assert await memory.get(FOREIGN, "m-1") is None


@pytest.mark.parametrize(
    "ref", ["", "../notes", "acme\x00", "x" * 300, "acme/notes", "globex/notes"]
)
async def test_an_invalid_reference_reads_as_empty(
    memory: AgentMemory, redactor: Redactor, ref: str
) -> None:
    await memory.put(MINE, "m-1", "x", redactor=redactor)
    strange = MemoryScope(tenant="acme", memory_ref=ref, run_id="mine")

    assert await memory.list(strange) == []
    assert await memory.get(strange, "m-1") is None


async def test_a_step_that_runs_twice_writes_once(memory: AgentMemory, redactor: Redactor) -> None:
    first = await memory.put(MINE, "m-1", "first", redactor=redactor)

    again = await memory.put(MINE, "m-1", "second", redactor=redactor)

    assert again == first
    assert await memory.list(MINE) == [first]


async def test_a_list_is_limited_and_filtered(memory: AgentMemory, redactor: Redactor) -> None:
    for n in range(LIST_DEFAULT + 5):
        tags = ["even"] if n % 2 == 0 else []
        await memory.put(MINE, f"m-{n}", "x", redactor=redactor, tags=tags)

    assert len(await memory.list(MINE)) == LIST_DEFAULT
    assert len(await memory.list(MINE, MemoryListOptions(limit=0))) == LIST_DEFAULT
    assert len(await memory.list(MINE, MemoryListOptions(limit=1000))) == LIST_DEFAULT + 5
    newest = await memory.list(MINE, MemoryListOptions(limit=2, tag="even"))
    assert [entry.id for entry in newest] == ["m-104", "m-102"]


@pytest.mark.parametrize("expires_at", [-1, END_OF_CALENDAR + 1])
async def test_an_impossible_date_is_refused(
    memory: AgentMemory, redactor: Redactor, expires_at: int
) -> None:
    with pytest.raises(Refused):
        await memory.put(MINE, "m-1", "x", redactor=redactor, expires_at=expires_at)

    last = await memory.put(MINE, "m-1", "x", redactor=redactor, expires_at=END_OF_CALENDAR)
    assert last.expires_at == "9999-12-31T23:59:59.999Z"


async def test_an_entry_above_the_limit_is_refused(memory: AgentMemory, redactor: Redactor) -> None:
    with pytest.raises(Refused, match=str(MAX_ENTRY_BYTES)):
        await memory.put(MINE, "m-1", "é" * MAX_ENTRY_BYTES, redactor=redactor)
