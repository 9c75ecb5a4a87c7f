"""What the parts of the store share."""

from __future__ import annotations

from collections.abc import Sequence

from wopr.store.postgres.asking import answered
from wopr.store.postgres.database import Database
from wopr.store.postgres.lanes import Lanes
from wopr.store.sql.asking import Asking, T
from wopr.store.sql.dialect import POSTGRES, Parameter, Row
from wopr.store.sql.reads import Reads


class Part(Reads):
    """One of the port's protocols, on the database's pool and its appending lanes."""

    def __init__(self, db: Database, lanes: Lanes) -> None:
        self._db = db
        self._lanes = lanes

    async def _read_few(self, tenant: str, sql: str, parameters: Sequence[Parameter]) -> list[Row]:
        return await self._db.read(tenant, POSTGRES.spelled(sql), parameters)

    async def _read_many(self, tenant: str, sql: str, parameters: Sequence[Parameter]) -> list[Row]:
        return await self._db.read(tenant, POSTGRES.spelled(sql), parameters)

    async def _read_together(self, tenant: str, asking: Asking[T]) -> T:
        return await self._db.view(tenant, lambda transaction: answered(transaction, asking))
