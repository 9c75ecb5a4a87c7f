"""The content of a host's database, read without the host."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import psycopg
from psycopg import sql

from tests.support.host import ServedHost
from wopr.protocol.documents import JsonObject

_TABLES = """
SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""
_SQLITE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_AUDITS = "SELECT body FROM audit_entries ORDER BY sequence"


def stored(host: ServedHost) -> bytes:
    """Return every value in the database, and every byte of the files in the data directory."""
    files = [path for path in host.data_dir.iterdir() if path != host.stderr_file]
    held = b"\n".join(path.read_bytes() for path in files if path.is_file())
    url = host.variables.get("WOPR_DB")
    if url is not None:
        held += b"\n".join(
            piece for table, values in _values(url) for piece in (table.encode(), *values)
        )
    assert b"audit_entries" in held, "the database is not where it was looked for"
    return held


def tables(host: ServedHost) -> dict[str, bytes]:
    """Return every value in the database, by table."""
    url = host.variables.get("WOPR_DB")
    if url is not None:
        return {table: b"\n".join(values) for table, values in _values(url)}
    with closing(sqlite3.connect(host.data_dir / "wopr.db")) as database:
        names = [name for (name,) in database.execute(_SQLITE_TABLES)]
        rows = {name: database.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
    return {name: b"\n".join(_bytes(v) for row in rows[name] for v in row) for name in names}


def audit_entries(host: ServedHost) -> list[JsonObject]:
    """Return the audit log's entries of every tenant, oldest first."""
    url = host.variables.get("WOPR_DB")
    if url is None:
        file = f"file:{host.data_dir / 'wopr.db'}?mode=ro"
        with closing(sqlite3.connect(file, uri=True)) as database:
            return [json.loads(body) for (body,) in database.execute(_AUDITS)]
    with psycopg.connect(url, options="-c search_path=wopr") as server:
        return [json.loads(body) for (body,) in server.execute(_AUDITS)]


def age_pushes(host: ServedHost, days: int) -> None:
    """Make the last push of every KAHN run older by so many days; the host must not run."""
    aged = f"UPDATE fleet_runs SET pushed_at = pushed_at - {days * 86_400_000}"
    url = host.variables.get("WOPR_DB")
    if url is None:
        with closing(sqlite3.connect(host.data_dir / "wopr.db")) as database, database:
            database.execute(aged)
    else:
        with psycopg.connect(url, options="-c search_path=wopr") as server:
            server.execute(aged)


def unmask_observed_runs(host: ServedHost, secret: str) -> None:
    """Store a secret in observed runs like hosts without masking did; the host must not run."""
    url = host.variables.get("WOPR_DB")
    events = "SELECT run_id, sequence, body FROM events WHERE run_id LIKE 'kahn-%'"
    if url is None:
        with closing(sqlite3.connect(host.data_dir / "wopr.db")) as database, database:
            for run_id, sequence, body in database.execute(events).fetchall():
                leaking = body.replace(b"[REDACTED]", secret.encode())
                key = (leaking, run_id, sequence)
                database.execute(
                    "UPDATE events SET body = ? WHERE run_id = ? AND sequence = ?", key
                )
            database.execute(
                "UPDATE fleet_agent_runs SET task = replace(task, '[REDACTED]', ?)", (secret,)
            )
        return
    with psycopg.connect(url, options="-c search_path=wopr") as server:
        for run_id, sequence, body in server.execute(events.replace("%", "%%"), ()).fetchall():
            leaking = bytes(body).replace(b"[REDACTED]", secret.encode())
            key = (leaking, run_id, sequence)
            server.execute("UPDATE events SET body = %s WHERE run_id = %s AND sequence = %s", key)
        server.execute(
            "UPDATE fleet_agent_runs SET task = replace(task, '[REDACTED]', %s)", (secret,)
        )


def _values(url: str) -> list[tuple[str, list[bytes]]]:
    """Return every table with all its values."""
    found: list[tuple[str, list[bytes]]] = []
    # The tests' login is an administrator: no policy hides rows.
    with psycopg.connect(url) as server:
        for schema, table in server.execute(_TABLES).fetchall():
            rows = server.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table)))
            found.append((table, [_bytes(value) for row in rows for value in row]))
    return found


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
