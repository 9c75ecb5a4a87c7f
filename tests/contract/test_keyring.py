"""Keys at work on each store."""

from __future__ import annotations

import pytest

from tests.contract.builders import T0, key
from wopr.protocol.errors import Unauthenticated
from wopr.runtime.keyring import Keyring
from wopr.store.port import Store

pytestmark = pytest.mark.anyio


async def test_a_process_whose_clock_is_behind_does_not_take_a_revoked_key(store: Store) -> None:
    row = key()
    await store.put_key(row)
    await store.update_key(row.key_id, revoked_at=T0 + 60_000)
    keyring = Keyring(store, [], now=lambda: T0)

    with pytest.raises(Unauthenticated, match="revoked"):
        await keyring.holder(row.key_hash)
