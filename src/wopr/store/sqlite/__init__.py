"""The store on SQLite: one file, one writer thread, and readers that never wait for the writer."""

from __future__ import annotations

from wopr.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
