"""The store on PostgreSQL: many processes, a transaction per call, row-level security."""

from __future__ import annotations

from wopr.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
