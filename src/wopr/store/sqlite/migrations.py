"""Migrations of the SQLite schema.

The files `schema/NNNN_name.sql` are the migrations; `PRAGMA user_version` is the number of
migrations that a database file has. A released migration is never edited: a change is a new file at
the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

from wopr.protocol.errors import Refused


class Migration(NamedTuple):
    """One step of the schema."""

    name: str
    statements: tuple[str, ...]


def _load() -> tuple[Migration, ...]:
    scripts = sorted(
        (file.name, file.read_text())
        for file in (files("wopr.store.sqlite") / "schema").iterdir()
        if file.name[0].isdigit()
    )
    return tuple(
        Migration(file.removesuffix(".sql").partition("_")[2], tuple(_statements(script)))
        for file, script in scripts
    )


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements. The body of a trigger also contains semicolons."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


MIGRATIONS = _load()


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the number of migrations that this database has."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the missing migrations, all or none.

    Raises `Refused` if the schema is newer than this program.
    """
    if schema_version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again under the lock: another process may have migrated in between.
        _apply(connection, schema_version(connection))
    except BaseException:
        connection.rollback()
        raise
    connection.execute("COMMIT")


def _apply(connection: sqlite3.Connection, version: int) -> None:
    if version > len(MIGRATIONS):
        raise Refused(
            f"the database has schema {version}, this program knows up to {len(MIGRATIONS)}: "
            "use the version of wopr that wrote it, or a newer one",
            field="db",
        )
    for migration in MIGRATIONS[version:]:
        for statement in migration.statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
