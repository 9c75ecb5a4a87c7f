"""`wopr migrate-store` from SQLite to a real PostgreSQL, and what prevents it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import psycopg
import pytest
from typer.testing import CliRunner, Result

from tests.support.fleet_rows import aggregate, audit, end, held_lines, push, start
from tests.support.postgres.databases import Databases
from tests.support.rows import OTHER, TENANT, agent, batch, ended
from wopr.cli.main import app
from wopr.protocol.errors import Refused
from wopr.security.redact import Redactors
from wopr.services.audit.trail import Audit, audit_key
from wopr.store.migrate.copy import open_copy
from wopr.store.migrate.source import COPIED_HOLDER
from wopr.store.open import open_store
from wopr.store.port import Store
from wopr.store.postgres.pool import parse_address
from wopr.store.postgres.texts import escape_texts
from wopr.store.sqlite.connections import lock_database

NOON = 1_800_000_000_000
# More than a batch, so that a move can be interrupted in the middle of a table.
EVENTS = 4500
# Created by the host that opens a database, never moved.
OWN_TABLES = {"meta", "recovering", "sqlite_sequence"}


# A row in it prevents the start of every host without the key.
ENCRYPTION_KEYS = "encryption_keys"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with rows in every table."""
    folder = tmp_path_factory.mktemp("source")
    file = folder / "wopr.db"
    anyio.run(_write, folder)
    with closing(sqlite3.connect(file)) as database, database:
        for table in set(tables(database)) - {ENCRYPTION_KEYS}:
            if not database.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():
                for number in range(3):
                    _insert(database, table, number)
    return file


async def _write(folder: Path) -> None:
    store = await open_store(f"sqlite:///{folder / 'wopr.db'}")
    trail = Audit(store, audit_key(folder), lambda: NOON, Redactors())
    for number in range(5):
        await trail.record(TENANT, "ada", "run.cancel", f"run-{number}")
    await trail.sign()
    await store.append(TENANT, [batch("run-0", count=EVENTS, tags=("a\0b", "ü")), batch("run-1")])
    await store.append(OTHER, [batch("run-2"), ended("run-2", 1)])
    await store.put_agent(TENANT, agent())
    lines = [start("r-1"), audit("r-1", "c", "fail", "coder"), end("r-1", duration_s=0.1 + 0.2)]
    await push(store, TENANT, lines)
    await store.close()


def _insert(database: sqlite3.Connection, table: str, number: int) -> None:
    """Insert a row into a table with any columns."""
    values: dict[str, object] = {}
    for _, column, kind, *_ in database.execute(f"PRAGMA table_info({table})"):
        samples = {"TEXT": f"{column}\0\x1aü{number}", "BLOB": bytes([0, 255, number])}
        values[column] = samples.get(kind, number % 2)
    values |= {"run_id": f"run-{number}"} if "run_id" in values else {}
    values |= {"tenant": TENANT if number < 2 else OTHER} if "tenant" in values else {}
    for place in ("place", "sequence", "line", "bucket"):
        if isinstance(values.get(place), int):
            values[place] = number
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))


@pytest.fixture
def target(databases: Databases) -> Iterator[str]:
    with databases.new(is_empty=True) as url:
        yield url


@pytest.fixture(scope="module")
def moved(source: Path, databases: Databases) -> Iterator[tuple[str, Result]]:
    """A target after the move, for tests that only read it, and the result of the command."""
    with databases.new(is_empty=True) as url:
        yield url, migrate(source, url)


def migrate(source: Path, target: str, *options: str) -> Result:
    arguments = ["migrate-store", "--from", f"sqlite:///{source}", "--to", target]
    return CliRunner().invoke(app, [*arguments, *options])


def tables(database: sqlite3.Connection) -> list[str]:
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in found if name not in OWN_TABLES]


def columns(database: sqlite3.Connection, table: str) -> str:
    return ", ".join(row[1] for row in database.execute(f"PRAGMA table_info({table})"))


def assert_same_rows(source: Path, target: str) -> None:
    with closing(sqlite3.connect(source)) as here, connected(target) as there:
        for table in tables(here):
            asked = f"SELECT {columns(here, table)} FROM {table}"
            expected = sorted(map(repr, here.execute(asked)))
            found = sorted(repr(plain(row)) for row in there.execute(asked.encode()))
            assert expected or table == ENCRYPTION_KEYS, table
            assert found == expected, table


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(int(value) if isinstance(value, bool) else value for value in row)


def connected(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True, options="-c search_path=wopr")
    escape_texts(connection)
    return connection


async def read_of(store: Store) -> list[object]:
    """Return what a reader sees of both tenants."""
    shown: list[object] = [
        await store.read(TENANT, "run-0", EVENTS - 10, 10),
        await store.read(OTHER, "run-2"),
        await store.run(OTHER, "run-2"),
        await store.read(OTHER, "run-0"),
        await store.agents(TENANT, None, 10),
        await store.audit_entries(0, 10),
        await aggregate(store, TENANT),
        await held_lines(store, TENANT, "r-1"),
        await store.queued_projections(0, 10),
    ]
    await store.close()
    return shown


def test_every_row_of_every_table_is_moved_unchanged(source: Path, target: str) -> None:
    done = migrate(source, target, "--json")

    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["rows"]["events"], report["auditEntries"]) == (EVENTS + 3, 5)
    assert_same_rows(source, target)


def test_a_moved_database_is_read_as_before(source: Path, moved: tuple[str, Result]) -> None:
    async def read(url: str) -> list[object]:
        return await read_of(await open_store(url))

    assert anyio.run(read, moved[0]) == anyio.run(read, f"sqlite:///{source}")


def test_every_table_of_the_target_has_rows(moved: tuple[str, Result]) -> None:
    with connected(moved[0]) as there:
        found = there.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE c.relnamespace = 'wopr'::regnamespace AND c.relkind = 'r' "
            "AND a.attname = 'tenant'"
        ).fetchall()
        empty = [
            name
            for (name,) in found
            if there.execute(f"SELECT 1 FROM {name} LIMIT 1".encode()).fetchone() is None
        ]

    assert len(found) > 30
    assert empty == []


def test_sequence_numbers_continue_after_the_moved_ones(source: Path, target: str) -> None:
    migrate(source, target)

    async def places() -> tuple[int, int]:
        store = await open_store(target)
        [before] = await store.agents(TENANT, None, 10)
        await store.put_agent(TENANT, agent(version="2"))
        [after] = await store.agents(TENANT, None, 10)
        await store.close()
        return before.place, after.place

    before, after = anyio.run(places)

    assert after > before


def test_runs_that_had_not_ended_can_be_recovered_after_the_move(
    moved: tuple[str, Result],
) -> None:
    with connected(moved[0]) as there:
        holders = dict(there.execute("SELECT run_id, holder FROM runs").fetchall())

    assert {name: holders[name] for name in ("run-0", "run-1", "run-2")} == {
        "run-0": COPIED_HOLDER,
        "run-1": COPIED_HOLDER,
        "run-2": None,
    }


def test_an_interrupted_move_continues_where_it_stopped(source: Path, target: str) -> None:
    class CutOff(Exception):
        pass

    def stop(table: str, rows: int) -> None:
        if table == "events":
            raise CutOff

    async def open_target() -> None:
        await open_store(target)

    async def migrated() -> None:
        await (await open_store(target)).close()

    anyio.run(migrated)
    with pytest.raises(CutOff), open_copy(source, parse_address(target)) as under_way:
        under_way.copy(stop)
    with pytest.raises(Refused, match="migrate-store"):
        anyio.run(open_target)
    with open_copy(source, parse_address(target)) as under_way:
        left = under_way.total - under_way.copied_rows

    done = migrate(source, target)

    assert done.exit_code == 0, done.output
    assert 0 < left < EVENTS + 500
    assert_same_rows(source, target)


def test_a_move_killed_at_its_end_is_reported_as_complete_when_called_again(
    source: Path, target: str
) -> None:
    first = migrate(source, target, "--json")

    again = migrate(source, target)

    assert again.exit_code == 0, again.output
    assert f"already moved {sum(json.loads(first.stdout)['rows'].values())} rows" in again.stdout
    assert_same_rows(source, target)


def test_a_complete_move_stays_complete_after_hosts_have_written_to_the_target(
    source: Path, target: str
) -> None:
    async def append() -> None:
        store = await open_store(target)
        await store.append(TENANT, [batch("later")])
        await store.close()

    migrate(source, target)
    anyio.run(append)

    again = migrate(source, target)

    assert again.exit_code == 0, again.output


def test_another_source_is_refused_after_a_complete_move(
    source: Path, target: str, tmp_path: Path
) -> None:
    async def write() -> None:
        store = await open_store(f"sqlite:///{tmp_path / 'other.db'}")
        await store.append(TENANT, [batch("other")])
        await store.close()

    anyio.run(write)
    migrate(source, target)

    done = migrate(tmp_path / "other.db", target)

    assert done.exit_code == 5
    assert "not empty" in done.stderr


def test_the_move_names_the_key_that_the_target_s_hosts_need(moved: tuple[str, Result]) -> None:
    _, done = moved

    assert "WOPR_HOST_KEY" in done.stderr
    assert "audit.key" not in done.output


def test_an_owner_without_superuser_rights_can_fill_its_database(
    source: Path, target: str, databases: Databases
) -> None:
    login = f"l_{uuid4().hex}"
    name = target.split("/")[3].partition("?")[0]
    with psycopg.connect(databases.server, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {login} LOGIN".encode())
        admin.execute(f"ALTER DATABASE {name} OWNER TO {login}".encode())
        admin.execute(f"GRANT wopr_service, wopr_clockwork, wopr_tenant TO {login}".encode())

        done = migrate(source, target.replace("postgres:@", f"{login}:@"))

    assert done.exit_code == 0, done.output
    assert_same_rows(source, target)
    with connected(target) as there:
        unforced = there.execute(
            "SELECT count(*) FROM pg_class WHERE relrowsecurity AND NOT relforcerowsecurity"
        ).fetchone()
        there.execute(f"REASSIGN OWNED BY {login} TO postgres".encode())
        there.execute(f"DROP OWNED BY {login}".encode())
        there.execute(f"DROP ROLE {login}".encode())
    assert unforced == (0,)


def test_a_target_with_rows_is_refused_and_not_changed(source: Path, target: str) -> None:
    async def append() -> None:
        store = await open_store(target)
        await store.append(TENANT, [batch("mine")])
        await store.close()

    anyio.run(append)

    done = migrate(source, target)

    assert done.exit_code == 5
    assert "not empty" in done.stderr
    with connected(target) as there:
        assert there.execute("SELECT run_id FROM runs").fetchall() == [("mine",)]


def test_a_source_in_use_by_a_host_is_refused(source: Path, target: str) -> None:
    with lock_database(source):
        done = migrate(source, target)

    assert done.exit_code == 5
    assert "serves this database" in done.stderr


def test_a_target_in_use_by_a_host_is_refused(source: Path, target: str) -> None:
    async def migrated() -> None:
        await (await open_store(target)).close()

    anyio.run(migrated)
    with connected(target) as there:
        there.execute("INSERT INTO processes (process_id, kind) VALUES ('api-1', 'api')")

    done = migrate(source, target)

    assert done.exit_code == 5
    assert "api-1 serves the target" in done.stderr


def test_a_damaged_audit_log_is_named_and_no_host_opens_the_target(
    source: Path, target: str, tmp_path: Path
) -> None:
    copy = tmp_path / "wopr.db"
    copy.write_bytes(source.read_bytes())
    with closing(sqlite3.connect(copy)) as database, database:
        database.execute(
            "UPDATE audit_entries SET body = CAST(body || ' ' AS BLOB) WHERE sequence = 2"
        )

    done = migrate(copy, target)

    assert done.exit_code == 1
    assert "no host will open it" in done.stderr

    async def open_target() -> None:
        await open_store(target)

    with pytest.raises(Refused, match="migrate-store"):
        anyio.run(open_target)


@pytest.mark.parametrize(
    ("source_url", "target_url", "said"),
    [
        ("sqlite:///nowhere.db", None, "no database file nowhere.db"),
        ("postgresql://h/d", None, "sqlite:///relative/path"),
        (None, "sqlite:///other.db", "postgresql://user:password@host"),
    ],
)
def test_an_invalid_database_is_named(
    source: Path,
    moved: tuple[str, Result],
    source_url: str | None,
    target_url: str | None,
    said: str,
) -> None:
    arguments = ["--from", source_url or f"sqlite:///{source}", "--to", target_url or moved[0]]

    done = CliRunner().invoke(app, ["migrate-store", *arguments])

    assert done.exit_code in (2, 3)
    assert said in done.stderr
