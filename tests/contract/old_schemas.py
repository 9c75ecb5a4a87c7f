"""Databases of earlier schemas, to be migrated when a store opens them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import psycopg

from wopr.store.postgres import migrations as postgres
from wopr.store.sqlite import migrations as sqlite

Statements = Sequence[tuple[str, tuple[object, ...]]]


def fill_old_sqlite(file: Path, name: str, statements: Statements) -> str:
    """Create a database with the migrations before `name`, fill it, and return its URL."""
    before = [migration.name for migration in sqlite.MIGRATIONS].index(name)
    connection = sqlite3.connect(file)
    for migration in sqlite.MIGRATIONS[:before]:
        for statement in migration.statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {before}")
    for statement, values in statements:
        connection.execute(statement, values)
    connection.commit()
    connection.close()
    return f"sqlite:///{file}"


async def fill_old_postgres(url: str, name: str, statements: Statements) -> None:
    """Apply the migrations before `name` to an empty database, and fill it."""
    before = [migration.name for migration in postgres.MIGRATIONS].index(name)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await postgres.migrate(connection, postgres.MIGRATIONS[:before])
        for statement, values in statements:
            await connection.execute(statement.replace("?", "%s").encode(), values)
