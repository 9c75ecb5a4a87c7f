"""The ids of the keys that stored content may be encrypted with."""

from __future__ import annotations

import time
from typing import Final

from wopr.store.tables.database import Table
from wopr.store.tables.dialect import Variants

KEY_IDS: Final = "SELECT key_id FROM encryption_keys ORDER BY added_at, key_id"
ADD_KEY: Final = Variants(
    sqlite="""
INSERT INTO encryption_keys (key_id, added_at) VALUES (?, ?) ON CONFLICT (key_id) DO NOTHING
""",
    postgres="SELECT host_add_encryption_key(?, ?)",
)


class EncryptionKeyTable(Table):
    """The part of `Store` for encryption keys, in SQL."""

    async def encryption_keys(self) -> list[str]:
        """List the ids of the keys that stored content may be encrypted with."""
        return [key_id for (key_id,) in await self._sql.read_host_many(KEY_IDS)]

    async def add_encryption_key(self, key_id: str) -> None:
        """Record that content is encrypted with a key from now on."""
        await self._sql.change_host(ADD_KEY, (key_id, round(time.time() * 1000)))
