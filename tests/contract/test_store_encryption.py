"""Content encrypted at rest: the database content, who can read it, and a key change."""

from __future__ import annotations

import inspect
import re
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.support.feedback_rows import annotation, judge, pending, queue, review
from tests.support.rows import (
    OTHER,
    T0,
    TENANT,
    answer,
    artifact,
    batch,
    ended,
    invocation,
    memory,
    suspending,
    suspension,
)
from wopr.protocol.errors import Refused, WoprError
from wopr.security.encryption import MARK, TEXT_MARK, Cipher
from wopr.store.encrypted import EncryptedStore
from wopr.store.open import open_store
from wopr.store.port import RunFilter, Store
from wopr.store.port.feedback import JudgedRow
from wopr.store.port.store import StoreOptions
from wopr.store.port.suspensions import SuspensionFilter
from wopr.store.reencryption import reencrypt

pytestmark = pytest.mark.anyio

MARKER = "the-marker-of-this-test"
BODY = f'{{"eventId":"e-0","text":"{MARKER}"}}'.encode()
OLD, NEW = b"o" * 32, b"n" * 32
# The columns with content.
CONTENT = {
    "runs": ("snapshot", "fork"),
    "events": ("body",),
    "artifacts": ("body",),
    "suspensions": ("body",),
    "annotations": ("body",),
    "answers": ("body",),
    "invocations": ("outcome",),
    "memories": ("content",),
}


def cipher(*keys: bytes) -> Cipher:
    return Cipher(keys, secrets.token_bytes)


async def opened(url: str, *keys: bytes) -> Store:
    return await open_store(url, StoreOptions(cipher=cipher(*keys) if keys else None))


async def fill(store: Store, tenant: str = TENANT, prefix: str = "") -> None:
    """Write content of every kind."""
    first = batch(
        f"{prefix}run-1", fork=BODY, artifacts=[artifact(body=BODY)], idempotency=answer(body=BODY)
    )
    await store.append(tenant, [replace(first, events=(replace_body(first.events[0]),))])
    await store.append(tenant, [replace(ended(f"{prefix}run-1"), run=ended_run(prefix))])
    waiting = suspension(run_id=f"{prefix}run-2", body=BODY)
    await store.append(tenant, [suspending(waiting)])
    await store.put_annotation(
        tenant, replace(annotation(run_id=f"{prefix}run-1"), body=BODY, annotation_id="ann-1")
    )
    await store.claim_invocation(tenant, invocation(run_id=f"{prefix}run-1"))
    await store.settle_invocation(tenant, "i-1", "succeeded", BODY)
    await store.put_memory(tenant, memory(content=MARKER + "\0 ü"))


def replace_body(event: Any) -> Any:
    return type(event)(sequence=event.sequence, type=event.type, body=BODY)


def ended_run(prefix: str) -> Any:
    return replace(ended(f"{prefix}run-1").run, snapshot=BODY, fork=BODY)


async def check(store: Store, tenant: str = TENANT, prefix: str = "") -> None:
    """Read all of it back."""
    run_id = f"{prefix}run-1"
    assert (await store.read(tenant, run_id))[0].body == BODY
    [loaded] = await store.load_runs(tenant, [run_id], 10)
    assert (loaded.events[0].body, loaded.row.snapshot, loaded.row.fork) == (BODY, BODY, BODY)
    row = await store.run(tenant, run_id)
    assert row is not None
    assert (row.snapshot, row.fork) == (BODY, BODY)
    page = await store.runs(tenant, RunFilter(statuses=("completed",)), None, 10)
    assert [each.fork for each in page.runs] == [BODY]
    event = await store.event(tenant, run_id, "e-0")
    assert event is not None
    assert event.body == BODY
    assert await store.event(tenant, run_id, "e-9") is None
    made = await store.artifact(tenant, run_id, "a-1")
    assert made is not None
    assert made.body == BODY
    [pending] = (await store.pending_interrupts(tenant, SuspensionFilter(), None, 10)).suspensions
    assert pending.body == BODY
    [noted] = await store.annotations(tenant, run_id, None, 10)
    assert noted.body == BODY
    remembered = await store.idempotency_record(tenant, b"k")
    assert remembered is not None
    assert remembered.body == BODY
    assert (await store.claim_invocation(tenant, invocation())).outcome == BODY
    [kept] = await store.memories(tenant, "notes", now=T0)
    assert kept.content == MARKER + "\0 ü"
    one = await store.memory(tenant, "notes", "m-1", T0)
    assert one == kept


def rows(url: str, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a table, read without the store."""
    sql = f"SELECT {', '.join(columns)} FROM {table}"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(sql).fetchall()
    with psycopg.connect(url, options="-c search_path=wopr") as server:
        return server.execute(sql.encode()).fetchall()


def content(url: str) -> list[bytes]:
    """Return every stored value of content."""
    return [
        value.encode() if isinstance(value, str) else bytes(value)
        for table, columns in CONTENT.items()
        for row in rows(url, table, columns)
        for value in row
        if value is not None
    ]


async def test_content_of_every_kind_is_encrypted_and_read_back(store_url: str) -> None:
    store = await opened(store_url, OLD)
    await fill(store)
    await check(store)
    await store.close()

    values = content(store_url)
    assert len(values) >= 10
    for value in values:
        assert value.startswith((MARK, TEXT_MARK.encode()))
        assert MARKER.encode() not in value


async def test_annotations_of_reviews_and_judges_are_encrypted_too(store_url: str) -> None:
    store = await opened(store_url, OLD)
    await store.append(TENANT, [batch("run-1")])
    await store.put_queue(TENANT, queue(), ["run-1"])
    await store.lock_queue_item(TENANT, "q-1", "ann", now=T0, until=T0 + 60_000)
    await store.finish_review(TENANT, review("ann"))
    await store.put_judge(TENANT, judge(), pending("run-1"))
    judged = JudgedRow(run_id="run-1", state="annotated", annotation_id="ann-2")
    await store.set_judged_state(TENANT, "j-1", judged, annotation("ann-2"))

    found = await store.annotations(TENANT, "run-1", None, 10)
    await store.close()

    of_review = review("ann").annotations[0].body
    assert sorted(row.body for row in found) == sorted((of_review, annotation("ann-2").body))
    stored = [bytes(body) for (body,) in rows(store_url, "annotations", ("body",))]
    assert len(stored) == 2
    assert all(body.startswith(MARK) for body in stored)


async def test_without_a_key_content_is_stored_in_plain_text(store_url: str) -> None:
    store = await opened(store_url)
    await fill(store)
    await check(store)
    await store.close()

    assert all(MARKER.encode() in value or value in (b"1", b"0") for value in content(store_url))


async def test_content_stored_before_encryption_was_enabled_is_still_read(store_url: str) -> None:
    before = await opened(store_url)
    await fill(before)
    await before.close()

    after = await opened(store_url, OLD)
    await check(after)
    await after.close()


@pytest.mark.parametrize("keys", [(), (NEW,)])
async def test_a_store_does_not_open_without_the_key_of_its_content(
    store_url: str, keys: tuple[bytes, ...]
) -> None:
    store = await opened(store_url, OLD)
    await store.close()

    with pytest.raises(Refused, match=f"the key {cipher(OLD).key_ids[0]}, which is not configured"):
        await opened(store_url, *keys)


async def test_content_moved_to_another_place_cannot_be_decrypted(store_url: str) -> None:
    store = await opened(store_url, OLD)
    await store.append(TENANT, [batch("run-1", count=2)])
    move = (
        "UPDATE events SET body = (SELECT e.body FROM events e WHERE e.sequence = 1) "
        "WHERE sequence = 0"
    )
    if store_url.startswith("sqlite"):
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
            connection.execute(move)
            connection.commit()
    else:
        with psycopg.connect(store_url, options="-c search_path=wopr") as server:
            server.execute(move)

    with pytest.raises(WoprError, match="was changed or moved"):
        await store.read(TENANT, "run-1")
    await store.close()


async def test_a_key_change_is_complete_and_can_be_repeated(store_url: str) -> None:
    plain = await opened(store_url)
    await fill(plain)
    await plain.close()
    old = await opened(store_url, OLD)
    await fill(old, OTHER, "other-")
    await old.close()
    # A host with both keys serves meanwhile.
    host = await opened(store_url, NEW, OLD)
    batches: list[int] = []

    changed = reencrypt(store_url, cipher(NEW, OLD), batches.append)

    await check(host)
    await check(host, OTHER, "other-")
    await host.close()
    assert changed == sum(batches) == len(content(store_url))
    heads = (cipher(NEW).head, cipher(NEW).text_head.encode())
    assert all(value.startswith(heads) for value in content(store_url))
    assert reencrypt(store_url, cipher(NEW, OLD), batches.append) == 0
    after = await opened(store_url, NEW)
    await check(after)
    await check(after, OTHER, "other-")
    await after.close()


async def test_content_encrypted_later_is_counted_at_its_stored_size(store_url: str) -> None:
    store = await opened(store_url)
    await store.append(TENANT, [batch("run-1", count=3)])
    before = await store.usage(TENANT, T0)
    await store.close()

    reencrypt(store_url, cipher(NEW), lambda _: None)

    store = await opened(store_url, NEW)
    after = await store.usage(TENANT, T0)
    await store.append(TENANT, [ended("run-1", first=3)])
    await store.delete_expired_runs(T0 + 10**9, 10)
    deleted = await store.usage(TENANT, T0)
    await store.close()
    assert after.event_bytes > before.event_bytes
    assert deleted.stored_bytes == 0


async def test_a_key_change_without_the_old_key_names_the_missing_key(store_url: str) -> None:
    store = await opened(store_url, OLD)
    await fill(store)
    await store.close()

    with pytest.raises(WoprError, match=f"{cipher(OLD).key_ids[0]} is not configured"):
        reencrypt(store_url, cipher(NEW), lambda _: None)

    # Nothing was changed, so the old key alone still opens the store.
    await (await opened(store_url, OLD)).close()


async def test_a_store_encrypted_while_no_host_ran_does_not_open_without_the_key(
    store_url: str,
) -> None:
    store = await opened(store_url)
    await fill(store)
    await store.close()
    reencrypt(store_url, cipher(NEW), lambda _: None)

    with pytest.raises(Refused, match=cipher(NEW).key_ids[0]):
        await opened(store_url)


async def test_a_memory_that_looks_like_encrypted_text_is_encrypted_too(
    store_url: str,
) -> None:
    looks_encrypted = "\x02wopr:not base64: \u00e9"
    store = await opened(store_url)
    await store.put_memory(TENANT, memory(content=looks_encrypted))
    await store.close()

    reencrypt(store_url, cipher(NEW), lambda _: None)

    store = await opened(store_url, NEW)
    [found] = await store.memories(TENANT, "notes", now=T0)
    await store.close()
    assert found.content == looks_encrypted


@pytest.mark.parametrize("changes", [{"content": "\ud800"}, {"ref": "\ud800"}])
async def test_an_invalid_entry_is_refused_with_encryption_too(
    store_url: str, changes: dict[str, Any]
) -> None:
    store = await opened(store_url, OLD)

    with pytest.raises(Refused):
        await store.put_memory(TENANT, memory(**changes))
    await store.close()


async def test_the_encrypted_store_accepts_every_parameter_of_the_port() -> None:
    for name, method in vars(EncryptedStore).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        taken = inspect.signature(method).parameters
        named = inspect.signature(getattr(Store, name)).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.values())
        assert takes_any or taken.keys() == named.keys(), name


async def test_every_method_with_content_encrypts_or_decrypts() -> None:
    content_types = re.compile(
        r"\b(StoredEvent|StoredRun|RunRow|RunPage|Batch|Artifact|SuspensionPage|AnnotationRow|Review"
        r"|IdempotencyRecord|Invocation|MemoryRow|Delivery)\b"
    )
    with_content = {
        name
        for part in Store.__mro__
        for name, method in vars(part).items()
        if inspect.isfunction(method) and content_types.search(str(inspect.signature(method)))
    }

    assert len(with_content) > 15
    assert with_content <= vars(EncryptedStore).keys()
