"""What the parts of the store share."""

from __future__ import annotations

from wopr.store.postgres.database import Database
from wopr.store.postgres.lanes import Lanes


class Part:
    """One of the port's protocols, on the database's pool and its appending lanes."""

    def __init__(self, db: Database, lanes: Lanes) -> None:
        self._db = db
        self._lanes = lanes
