"""The store on SQLite: one file, one writer thread, readers that never wait for it."""

from __future__ import annotations

from wopr.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
