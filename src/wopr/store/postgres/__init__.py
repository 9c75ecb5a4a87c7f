"""The store on PostgreSQL: many processes, one transaction per call, row-level security by tenant."""

from __future__ import annotations

from wopr.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
