"""The database: the port, and its adapters for SQLite and PostgreSQL."""

from __future__ import annotations
