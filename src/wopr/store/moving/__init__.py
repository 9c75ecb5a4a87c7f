"""Moves a SQLite database into PostgreSQL, table by table and byte for byte.

The tables of both are read from their catalogues: one that only one of them has is a refusal, not
rows that stay behind. What has been reached is kept in the target, with the rows that it is about,
so that a move that was cut off goes on where it was.
"""

from __future__ import annotations

from wopr.store.moving.move import Moving, Report, moving

__all__ = ["Moving", "Report", "moving"]
