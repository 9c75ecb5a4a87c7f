from __future__ import annotations

import pytest

from tests.support.rows import OTHER, TENANT
from wopr.store.port import SecretRow, Store

pytestmark = pytest.mark.anyio


def row(name: str, sealed: bytes = b"sealed", *audience: str) -> SecretRow:
    return SecretRow(name=name, sealed=sealed, audience=audience, updated_at=1)


async def test_a_credential_is_read_as_it_was_stored(store: Store) -> None:
    kept = row("mine", b"\x00\x01", "openai", "api.example.com")

    await store.put_secret(TENANT, kept)

    assert await store.secret(TENANT, "mine") == kept


async def test_a_credential_of_the_same_name_replaces_the_old_one(store: Store) -> None:
    await store.put_secret(TENANT, row("mine", b"old"))

    await store.put_secret(TENANT, row("mine", b"new"))

    assert await store.secrets(TENANT) == [row("mine", b"new")]


async def test_credentials_are_listed_by_name(store: Store) -> None:
    for name in ("b", "a", "c"):
        await store.put_secret(TENANT, row(name))

    assert [each.name for each in await store.secrets(TENANT)] == ["a", "b", "c"]


async def test_a_credential_belongs_to_its_tenant_only(store: Store) -> None:
    await store.put_secret(TENANT, row("mine"))

    assert await store.secret(OTHER, "mine") is None
    assert await store.secrets(OTHER) == []
    assert not await store.delete_secret(OTHER, "mine")
    assert await store.secret(TENANT, "mine") is not None


async def test_a_deleted_credential_is_not_found(store: Store) -> None:
    await store.put_secret(TENANT, row("mine"))

    assert await store.delete_secret(TENANT, "mine")

    assert await store.secret(TENANT, "mine") is None
    assert not await store.delete_secret(TENANT, "mine")
