"""API keys on each store."""

from __future__ import annotations

import pytest

from tests.support.rows import T0, key
from wopr.protocol.errors import Unauthenticated
from wopr.services.api_keys import Keyring
from wopr.store.port import Store

pytestmark = pytest.mark.anyio


async def test_a_process_with_a_slow_clock_refuses_a_revoked_key(store: Store) -> None:
    row = key()
    await store.put_key(row)
    await store.update_key(row.key_id, revoked_at=T0 + 60_000)
    keyring = Keyring(store, [], now=lambda: T0)

    with pytest.raises(Unauthenticated, match="revoked"):
        await keyring.principal_of_hash(row.key_hash)
