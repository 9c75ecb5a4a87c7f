"""Encrypt stored content with the newest key, in batches, while hosts serve the database.

Values that are encrypted with the newest key are skipped, so a call that was interrupted is
repeated. A value is replaced only where it is still what was read.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from wopr.protocol.errors import Refused
from wopr.store.open import is_shared, sqlite_path, without_driver
from wopr.store.port.content import ContentCipher
from wopr.store.sqlite.faults import unavailable
from wopr.store.sqlite.usage import recount

if TYPE_CHECKING:
    import psycopg

Row: TypeAlias = tuple[Any, ...]

_RUNS_AT_ONCE: Final = 200
_ROWS_AT_ONCE: Final = 500
_BUSY_SECONDS: Final = 60.0

_KEYS: Final = "SELECT key_id FROM encryption_keys ORDER BY added_at, key_id"
_ADD_KEY: Final = """
INSERT INTO encryption_keys (key_id, added_at) VALUES (?, ?) ON CONFLICT (key_id) DO NOTHING
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """A column with content: the key of its table beside the tenant, and what its context names."""

    table: str
    column: str
    key: tuple[str, ...]
    kind: str
    place: tuple[str, ...] = ()
    is_text: bool = False

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that the context names."""
        return self.place or self.key


_OF_RUNS: Final = (
    _Content(table="runs", column="snapshot", key=("run_id",), kind="snapshot"),
    _Content(table="runs", column="fork", key=("run_id",), kind="fork"),
    _Content(table="events", column="body", key=("run_id", "sequence"), kind="event"),
    _Content(table="artifacts", column="body", key=("run_id", "artifact_id"), kind="artifact"),
    _Content(table="suspensions", column="body", key=("run_id", "interrupt_id"), kind="suspension"),
    _Content(
        table="annotations",
        column="body",
        key=("run_id", "created_at", "annotation_id"),
        place=("run_id", "annotation_id"),
        kind="annotation",
    ),
)
_OF_TENANTS: Final = (
    _Content(table="answers", column="body", key=("key_hash",), kind="answer"),
    _Content(table="invocations", column="outcome", key=("invocation_id",), kind="invocation"),
    _Content(
        table="memories",
        column="content",
        key=("place",),
        place=("memory_ref", "memory_id"),
        kind="memory",
        is_text=True,
    ),
)


class _Database(Protocol):
    """What the work needs of a database."""

    def tenants(self) -> list[str]: ...
    def runs(self, after: str, limit: int) -> list[tuple[str, str]]: ...
    def rows(self, tenant: str, sql: str, values: Sequence[object]) -> list[Row]: ...
    def change(self, tenant: str, changes: Sequence[tuple[str, Sequence[object]]]) -> None: ...
    def key_ids(self) -> list[str]: ...
    def add_key(self, newest: str, now: int) -> None: ...
    def forget_keys(self, newest: str) -> None: ...
    def recount(self) -> None: ...
    def any_of(self, column: str) -> str: ...


def reencrypt(url: str, cipher: ContentCipher, done: Callable[[int], None]) -> int:
    """Encrypt all content of the database with the newest key; answers how many values changed.

    `done` is called with the number of values of each batch. The id of the newest key is recorded
    first: from then on no host starts without that key. At the end the database forgets the older
    keys, and recounts stored bytes: encryption makes content longer. Raises `Refused` when the
    login does not own the tables of a PostgreSQL database.
    """
    total = 0
    with _opened(url) as database:
        if missing := [key for key in database.key_ids() if key not in cipher.key_ids]:
            raise Refused(
                f"the encryption key {', '.join(missing)} is not configured, and the database holds "
                "content that is encrypted with it",
                field="encryption_key",
            )
        database.add_key(cipher.key_ids[0], round(time.time() * 1000))
        for count in _batches(database, cipher):
            total += count
            done(count)
        database.forget_keys(cipher.key_ids[0])
        database.recount()
    return total


def _batches(database: _Database, cipher: ContentCipher) -> Iterator[int]:
    after = ""
    while chunk := database.runs(after, _RUNS_AT_ONCE):
        after = chunk[-1][1]
        for tenant in dict.fromkeys(owner for owner, _ in chunk):
            runs = [run_id for owner, run_id in chunk if owner == tenant]
            for content in _OF_RUNS:
                yield from _run_content(database, cipher, tenant, runs, content)
    for tenant in database.tenants():
        for content in _OF_TENANTS:
            yield from _tenant_content(database, cipher, tenant, content)


def _run_content(
    database: _Database, cipher: ContentCipher, tenant: str, runs: Sequence[str], content: _Content
) -> Iterator[int]:
    sql = f"{_select(content)} AND {database.any_of('run_id')} LIMIT {_ROWS_AT_ONCE}"
    while rows := database.rows(tenant, sql, [*_outdated(cipher, content), list(runs)]):
        yield _change(database, cipher, tenant, content, rows)


def _tenant_content(
    database: _Database, cipher: ContentCipher, tenant: str, content: _Content
) -> Iterator[int]:
    [key] = content.key
    # Smaller than every value of the key: bytes, numbers and texts sort so in both databases.
    after: object = {"key_hash": b"", "place": -1}.get(key, "")
    sql = f"{_select(content)} AND tenant = ? AND {key} > ? ORDER BY {key} LIMIT {_ROWS_AT_ONCE}"
    while rows := database.rows(tenant, sql, [*_outdated(cipher, content), tenant, after]):
        after = rows[-1][0]
        yield _change(database, cipher, tenant, content, rows)


def _select(content: _Content) -> str:
    columns = ", ".join((*content.key, *content.named, content.column))
    return (
        f"SELECT {columns} FROM {content.table} WHERE {content.column} IS NOT NULL "
        f"AND substr({content.column}, 1, ?) <> ?"
    )


def _outdated(cipher: ContentCipher, content: _Content) -> list[object]:
    head = cipher.text_head if content.is_text else cipher.head
    return [len(head), head]


def _change(
    database: _Database, cipher: ContentCipher, tenant: str, content: _Content, rows: Sequence[Row]
) -> int:
    keys = " AND ".join(f"{name} = ?" for name in content.key)
    sql = f"UPDATE {content.table} SET {content.column} = ? WHERE {keys} AND {content.column} = ?"
    width = len(content.key)
    changes = [
        (sql, [_again(cipher, tenant, content, row[width:-1], row[-1]), *row[:width], row[-1]])
        for row in rows
    ]
    database.change(tenant, changes)
    return len(changes)


def _again(
    cipher: ContentCipher, tenant: str, content: _Content, named: Sequence[Any], stored: Any
) -> bytes | str:
    place = [each.hex() if isinstance(each, bytes) else each for each in named]
    context = (content.kind, tenant, *place)
    if content.is_text:
        return cipher.encrypt_text(cipher.decrypt_text(stored, *context), *context)
    return cipher.encrypt(cipher.decrypt(bytes(stored), *context), *context)


@contextmanager
def _opened(url: str) -> Generator[_Database, None, None]:
    if is_shared(url):
        with _postgres(url) as database:
            yield database
        return
    path = Path(sqlite_path(url))
    if not path.exists():
        raise Refused(f"there is no database {path}", field="db")
    try:
        with closing(
            sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        ) as connection:
            yield _Sqlite(connection)
    except sqlite3.Error as error:
        raise unavailable(error) from error


class _Sqlite:
    """A SQLite file, which a host may be writing to."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def any_of(self, column: str) -> str:
        return f"{column} IN (SELECT value FROM json_each(?))"

    def tenants(self) -> list[str]:
        tables = (content.table for content in _OF_TENANTS)
        sql = " UNION ".join(f"SELECT tenant FROM {table}" for table in tables)
        return [tenant for (tenant,) in self._connection.execute(sql)]

    def runs(self, after: str, limit: int) -> list[tuple[str, str]]:
        sql = "SELECT tenant, run_id FROM runs WHERE run_id > ? ORDER BY run_id LIMIT ?"
        return self._connection.execute(sql, (after, limit)).fetchall()

    def rows(self, tenant: str, sql: str, values: Sequence[object]) -> list[Row]:
        return self._connection.execute(sql, [_parameter(value) for value in values]).fetchall()

    def change(self, tenant: str, changes: Sequence[tuple[str, Sequence[object]]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            for sql, values in changes:
                self._connection.execute(sql, [_parameter(value) for value in values])

    def key_ids(self) -> list[str]:
        return [key_id for (key_id,) in self._connection.execute(_KEYS)]

    def add_key(self, newest: str, now: int) -> None:
        self._connection.execute(_ADD_KEY, (newest, now))

    def forget_keys(self, newest: str) -> None:
        self._connection.execute("DELETE FROM encryption_keys WHERE key_id <> ?", (newest,))

    def recount(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            recount(self._connection)


def _parameter(value: object) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, list) else value


@contextmanager
def _postgres(url: str) -> Generator[_Database, None, None]:
    try:
        import psycopg

        from wopr.store.postgres.address import address_of
        from wopr.store.postgres.faults import translated
        from wopr.store.postgres.texts import hold_any_text
    except ModuleNotFoundError as missing:
        raise without_driver(missing) from None
    try:
        conninfo = address_of(url).connecting("search_path=wopr")
        with psycopg.connect(conninfo, autocommit=True) as connection:
            hold_any_text(connection)
            yield _Postgres(connection)
    except psycopg.Error as error:
        raise translated(error) from error


class _Postgres:
    """A PostgreSQL database, as its owner: as the roles of its functions, which see the rows."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        may = "SELECT has_table_privilege('token_keys', 'INSERT')"
        if connection.execute(may).fetchone() != (True,):
            raise Refused("the login must own the tables: name the owner's URL", field="db")

    def any_of(self, column: str) -> str:
        return f"{column} = ANY (?)"

    def tenants(self) -> list[str]:
        tables = (content.table for content in _OF_TENANTS)
        sql = " UNION ".join(f"SELECT tenant FROM {table}" for table in tables)
        return [tenant for (tenant,) in self._across(sql, ())]

    def runs(self, after: str, limit: int) -> list[tuple[str, str]]:
        sql = "SELECT tenant, run_id FROM runs WHERE run_id > %s ORDER BY run_id LIMIT %s"
        return [(row[0], row[1]) for row in self._across(sql, (after, limit))]

    def rows(self, tenant: str, sql: str, values: Sequence[object]) -> list[Row]:
        with self._as_tenant(tenant):
            return self._connection.execute(_marked(sql), values).fetchall()

    def change(self, tenant: str, changes: Sequence[tuple[str, Sequence[object]]]) -> None:
        with self._as_tenant(tenant):
            for sql, values in changes:
                self._connection.execute(_marked(sql), values)

    def key_ids(self) -> list[str]:
        return [key_id for (key_id,) in self._connection.execute(_KEYS.encode())]

    def add_key(self, newest: str, now: int) -> None:
        self._connection.execute(_marked(_ADD_KEY), (newest, now))

    def forget_keys(self, newest: str) -> None:
        self._connection.execute("DELETE FROM encryption_keys WHERE key_id <> %s", (newest,))

    def recount(self) -> None:
        from wopr.store.postgres.schema_usage import RECOUNT

        with self._connection.transaction():
            self._connection.execute("SET LOCAL ROLE wopr_clockwork")
            self._connection.execute(RECOUNT.body.encode())

    def _across(self, sql: str, values: Sequence[object]) -> list[Row]:
        with self._connection.transaction():
            self._connection.execute("SET LOCAL ROLE wopr_clockwork")
            return self._connection.execute(sql.encode(), values).fetchall()

    @contextmanager
    def _as_tenant(self, tenant: str) -> Generator[None, None, None]:
        with self._connection.transaction():
            self._connection.execute("SET LOCAL ROLE wopr_tenant")
            self._connection.execute("SELECT set_config('wopr.tenant', %s, true)", (tenant,))
            yield


def _marked(sql: str) -> bytes:
    """A statement with the driver's marks."""
    return sql.replace("?", "%s").encode()
