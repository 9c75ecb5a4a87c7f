"""Ended sessions of the console."""

from __future__ import annotations

import pytest

from tests.support.rows import OTHER, TENANT
from wopr.store.port import Store

pytestmark = pytest.mark.anyio

SESSION, LATER_SESSION = b"\x01" * 32, b"\x02" * 32


async def test_signing_out_ends_the_session_for_its_tenant_only(store: Store) -> None:
    await store.end_session(TENANT, SESSION, expires_at=1000, now=1)

    assert await store.is_session_ended(TENANT, SESSION)
    assert not await store.is_session_ended(TENANT, LATER_SESSION)
    assert not await store.is_session_ended(OTHER, SESSION)


async def test_a_session_can_be_signed_out_twice(store: Store) -> None:
    await store.end_session(TENANT, SESSION, expires_at=1000, now=1)

    await store.end_session(TENANT, SESSION, expires_at=1000, now=2)

    assert await store.is_session_ended(TENANT, SESSION)


async def test_records_of_expired_sessions_are_deleted(store: Store) -> None:
    await store.end_session(TENANT, SESSION, expires_at=1000, now=1)

    await store.end_session(TENANT, LATER_SESSION, expires_at=5000, now=1000)

    assert not await store.is_session_ended(TENANT, SESSION)
    assert await store.is_session_ended(TENANT, LATER_SESSION)


async def test_signing_out_stores_no_response(store: Store) -> None:
    await store.end_session(TENANT, SESSION, expires_at=1000, now=1)

    assert await store.idempotency_record(TENANT, SESSION) is None
