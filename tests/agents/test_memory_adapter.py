from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from wopr.agents.memory import LIST_DEFAULT, MAX_ENTRY_BYTES, AgentMemory, MemoryScope
from wopr.protocol.errors import Refused
from wopr.protocol.resources.memory import MemoryListOptions
from wopr.security.redact import Redactor
from wopr.store.open import open_store

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000
PLAIN = Redactor()


class Clock:
    """A clock that the test controls."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


def scope(tenant: str = "acme", ref: str = "notes", **view: object) -> MemoryScope:
    fields: dict[str, object] = {"run_id": "run-1", **view}
    return MemoryScope(tenant=tenant, memory_ref=ref, **fields)  # type: ignore[arg-type]  # tests name what they care about


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def memory(tmp_path: Path, clock: Clock) -> AsyncIterator[AgentMemory]:
    store = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    yield AgentMemory(store, clock)
    await store.close()


async def contents(memory: AgentMemory, where: MemoryScope, **options: object) -> list[str]:
    wanted = MemoryListOptions(**options)  # type: ignore[arg-type]  # tests name what they ask for
    return [entry.content for entry in await memory.list(where, wanted)]


async def test_an_entry_is_read_as_it_was_written(memory: AgentMemory) -> None:
    kept = await memory.put(scope(), "m", "a fact", redactor=PLAIN, tags=["a", "b", "a"])

    assert await memory.get(scope(), "m") == kept
    assert (kept.content, kept.tags) == ("a fact", ["a", "b"])
    assert await memory.get(scope(), "other") is None


async def test_entries_are_listed_newest_first_filtered_by_tag_and_limited(
    memory: AgentMemory, clock: Clock
) -> None:
    for number in range(3):
        clock.now += 1
        tags = ["odd"] if number % 2 else []
        await memory.put(scope(), f"m{number}", str(number), redactor=PLAIN, tags=tags)

    assert await contents(memory, scope()) == ["2", "1", "0"]
    assert await contents(memory, scope(), limit=2) == ["2", "1"]
    assert await contents(memory, scope(), tag="odd") == ["1"]
    assert await contents(memory, scope(), limit=0) == ["2", "1", "0"]


async def test_without_a_limit_the_host_s_limit_applies(memory: AgentMemory) -> None:
    for number in range(LIST_DEFAULT + 1):
        await memory.put(scope(), f"m{number}", str(number), redactor=PLAIN)

    assert len(await memory.list(scope())) == LIST_DEFAULT
    assert len(await contents(memory, scope(), limit=LIST_DEFAULT + 1)) == LIST_DEFAULT + 1


async def test_a_secret_is_redacted_in_content_and_tags_before_it_is_stored(
    memory: AgentMemory,
) -> None:
    redactor = Redactor()
    redactor.register("vault-key", "open-sesame-42")

    kept = await memory.put(
        scope(), "m", "say open-sesame-42", redactor=redactor, tags=["open-sesame-42"]
    )

    assert kept.content == "say [REDACTED:vault-key]"
    assert kept.tags == ["[REDACTED:vault-key]"]


async def test_a_reference_never_crosses_tenants(memory: AgentMemory) -> None:
    await memory.put(scope("acme", "globex/notes"), "m", "acme's", redactor=PLAIN)

    assert await contents(memory, scope("globex", "globex/notes")) == []
    assert await memory.get(scope("globex", "globex/notes"), "m") is None
    assert await contents(memory, scope("acme", "globex/notes")) == ["acme's"]


@pytest.mark.parametrize("ref", ["", "x" * 257, "../acme/notes", "a/../notes", "a\x00b", "\ud800"])
async def test_a_malformed_reference_reads_as_empty(memory: AgentMemory, ref: str) -> None:
    assert await memory.list(scope(ref=ref)) == []
    assert await memory.get(scope(ref=ref), "m") is None


async def test_an_entry_expires_to_the_millisecond(memory: AgentMemory, clock: Clock) -> None:
    await memory.put(scope(), "m", "brief", redactor=PLAIN, expires_at=NOW + 10)

    clock.now = NOW + 9
    assert await contents(memory, scope()) == ["brief"]
    clock.now = NOW + 10
    assert await contents(memory, scope()) == []
    assert await memory.get(scope(), "m") is None


async def test_writing_twice_under_one_id_keeps_the_first_entry(memory: AgentMemory) -> None:
    await memory.put(scope(), "m", "first", redactor=PLAIN)

    again = await memory.put(scope(), "m", "second", redactor=PLAIN)

    assert again.content == "first"
    assert await contents(memory, scope()) == ["first"]


async def test_writes_of_another_concurrent_run_are_not_seen(
    memory: AgentMemory, clock: Clock
) -> None:
    mine = scope(run_started_at=NOW)
    clock.now = NOW + 1
    await memory.put(scope(run_id="run-2"), "theirs", "theirs", redactor=PLAIN)
    await memory.put(mine, "mine", "mine", redactor=PLAIN)

    assert await contents(memory, mine) == ["mine"]
    assert await memory.get(mine, "theirs") is None
    assert await contents(memory, scope(run_id="run-3", run_started_at=NOW + 1)) == [
        "mine",
        "theirs",
    ]


async def test_an_entry_that_is_too_large_or_never_expires_is_refused(memory: AgentMemory) -> None:
    with pytest.raises(Refused, match="at most"):
        await memory.put(scope(), "m", "x" * (MAX_ENTRY_BYTES + 1), redactor=PLAIN)
    with pytest.raises(Refused, match="9999-12-31"):
        await memory.put(scope(), "m", "x", redactor=PLAIN, expires_at=2**60)
