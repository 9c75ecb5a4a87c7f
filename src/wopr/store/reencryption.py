"""Encrypt stored content with the newest key, in batches, while hosts serve the database.

Values that are encrypted with the newest key are skipped, so an interrupted call can be repeated. A
value is replaced only if it has not changed since it was read.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from wopr.protocol.errors import Refused
from wopr.store.open import is_shared, missing_driver_error, sqlite_path
from wopr.store.port.store import ContentCipher
from wopr.store.sqlite.connections import unavailable_error
from wopr.store.sqlite.maintenance import recount_stored_bytes
from wopr.store.tables.dialect import POSTGRES, SQLITE, Dialect, Row, Value
from wopr.store.tables.encryption_keys import ADD_KEY, KEY_IDS

if TYPE_CHECKING:
    import psycopg

_RUNS_AT_ONCE: Final = 200
_ROWS_AT_ONCE: Final = 500
_BUSY_SECONDS: Final = 60.0

_RUNS: Final = "SELECT tenant, run_id FROM runs WHERE run_id > ? ORDER BY run_id LIMIT ?"
# The owner of a PostgreSQL database inserts the key itself, without a function of the host.
_ADD_KEY: Final = ADD_KEY.sqlite
_DELETE_OLDER_KEYS: Final = "DELETE FROM encryption_keys WHERE key_id <> ?"
_RECOUNT_BODY = "SELECT prosrc FROM pg_proc WHERE oid = 'wopr.host_recount_stored_bytes'::regproc"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """An encrypted column, the key of its table without the tenant, and its encryption context."""

    table: str
    column: str
    key: tuple[str, ...]
    kind: str
    place: tuple[str, ...] = ()
    is_text: bool = False

    @property
    def context_columns(self) -> tuple[str, ...]:
        """The columns whose values are in the encryption context."""
        return self.place or self.key


_RUN_CONTENT: Final = (
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
_TENANT_CONTENT: Final = (
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
_TENANTS: Final = " UNION ".join(f"SELECT tenant FROM {each.table}" for each in _TENANT_CONTENT)


class _Database(Protocol):
    """The database whose content is encrypted again."""

    dialect: Dialect

    def key_ids(self) -> list[str]: ...
    def change_keys(self, sql: str, values: Sequence[Value]) -> None: ...
    def read_all_tenants(self, sql: str, values: Sequence[Value] = ()) -> list[Row]: ...
    def read(self, tenant: str, sql: str, values: Sequence[Value]) -> list[Row]: ...
    def change(self, tenant: str, sql: str, rows: Sequence[Sequence[Value]]) -> None: ...
    def recount(self) -> None: ...


def reencrypt(url: str, cipher: ContentCipher, on_batch: Callable[[int], None]) -> int:
    """Encrypt all content of the database with the newest key; return the number of changed values.

    `on_batch` is called with the number of values of each batch. The id of the newest key is stored
    first: from then on no host starts without that key. At the end the ids of the older keys are
    deleted and the stored bytes are recounted, because encryption makes content longer. Raises
    `Refused` if the login does not own the tables of a PostgreSQL database.
    """
    total = 0
    with _open_database(url) as database:
        if missing := [key for key in database.key_ids() if key not in cipher.key_ids]:
            raise Refused(
                f"the encryption key {', '.join(missing)} is not configured, and the database has "
                "content that is encrypted with it: configure the key",
                field="encryption_key",
            )
        database.change_keys(_ADD_KEY, (cipher.key_ids[0], round(time.time() * 1000)))
        for count in _reencrypt_batches(database, cipher):
            total += count
            on_batch(count)
        database.change_keys(_DELETE_OLDER_KEYS, (cipher.key_ids[0],))
        database.recount()
    return total


def _reencrypt_batches(database: _Database, cipher: ContentCipher) -> Iterator[int]:
    after = ""
    while chunk := database.read_all_tenants(_RUNS, (after, _RUNS_AT_ONCE)):
        after = chunk[-1][1]
        for tenant in dict.fromkeys(owner for owner, _ in chunk):
            runs = [run_id for owner, run_id in chunk if owner == tenant]
            for content in _RUN_CONTENT:
                yield from _reencrypt_run_content(database, cipher, tenant, runs, content)
    for (tenant,) in database.read_all_tenants(_TENANTS):
        for content in _TENANT_CONTENT:
            yield from _reencrypt_tenant_content(database, cipher, tenant, content)


def _reencrypt_run_content(
    database: _Database, cipher: ContentCipher, tenant: str, runs: Sequence[str], content: _Content
) -> Iterator[int]:
    dialect = database.dialect
    sql = f"{_select(content)} AND {dialect.in_array('run_id', 'text')} LIMIT {_ROWS_AT_ONCE}"
    values: list[Value] = [*_select_values(cipher, content), dialect.array(runs)]
    while rows := database.read(tenant, sql, values):
        yield _reencrypt_rows(database, cipher, tenant, content, rows)


def _reencrypt_tenant_content(
    database: _Database, cipher: ContentCipher, tenant: str, content: _Content
) -> Iterator[int]:
    [key] = content.key
    # Lower than every value of the key, on both databases.
    lowest: dict[str, Value] = {"key_hash": b"", "place": -1}
    after = lowest.get(key, "")
    sql = f"{_select(content)} AND tenant = ? AND {key} > ? ORDER BY {key} LIMIT {_ROWS_AT_ONCE}"
    while rows := database.read(tenant, sql, [*_select_values(cipher, content), tenant, after]):
        after = rows[-1][0]
        yield _reencrypt_rows(database, cipher, tenant, content, rows)


def _select(content: _Content) -> str:
    columns = ", ".join((*content.key, *content.context_columns, content.column))
    return (
        f"SELECT {columns} FROM {content.table} WHERE {content.column} IS NOT NULL "
        f"AND substr({content.column}, 1, ?) <> ?"
    )


def _select_values(cipher: ContentCipher, content: _Content) -> list[Value]:
    """Return the parameters of `_select`."""
    head = cipher.text_head if content.is_text else cipher.head
    return [len(head), head]


def _reencrypt_rows(
    database: _Database, cipher: ContentCipher, tenant: str, content: _Content, rows: Sequence[Row]
) -> int:
    keys = " AND ".join(f"{name} = ?" for name in content.key)
    sql = f"UPDATE {content.table} SET {content.column} = ? WHERE {keys} AND {content.column} = ?"
    width = len(content.key)
    changed: list[Sequence[Value]] = [
        (_reencrypt_value(cipher, tenant, content, row[width:-1], row[-1]), *row[:width], row[-1])
        for row in rows
    ]
    database.change(tenant, sql, changed)
    return len(changed)


def _reencrypt_value(
    cipher: ContentCipher,
    tenant: str,
    content: _Content,
    context_values: Sequence[Any],
    stored: Any,
) -> bytes | str:
    place = [each.hex() if isinstance(each, bytes) else each for each in context_values]
    context = (content.kind, tenant, *place)
    if content.is_text:
        return cipher.encrypt_text(cipher.decrypt_text(stored, *context), *context)
    return cipher.encrypt(cipher.decrypt(bytes(stored), *context), *context)


@contextmanager
def _open_database(url: str) -> Generator[_Database, None, None]:
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
        raise unavailable_error(error) from error


class _Sqlite:
    """A SQLite file; a host may write to it meanwhile."""

    dialect = SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def key_ids(self) -> list[str]:
        return [key_id for (key_id,) in self._connection.execute(KEY_IDS)]

    def change_keys(self, sql: str, values: Sequence[Value]) -> None:
        self._connection.execute(sql, values)

    def read_all_tenants(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def read(self, tenant: str, sql: str, values: Sequence[Value]) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def change(self, tenant: str, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            self._connection.executemany(sql, rows)

    def recount(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            recount_stored_bytes(self._connection)


@contextmanager
def _postgres(url: str) -> Generator[_Database, None, None]:
    try:
        import psycopg

        from wopr.store.postgres.faults import translate_error
        from wopr.store.postgres.pool import parse_address
        from wopr.store.postgres.texts import escape_texts
    except ModuleNotFoundError as missing:
        raise missing_driver_error(missing) from None
    try:
        conninfo = parse_address(url).conninfo_with("search_path=wopr")
        with psycopg.connect(conninfo, autocommit=True) as connection:
            escape_texts(connection)
            yield _Postgres(connection)
    except psycopg.Error as error:
        raise translate_error(error) from error


class _Postgres:
    """A PostgreSQL database, used by its owner with the roles that can read the rows."""

    dialect = POSTGRES

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        may = "SELECT has_table_privilege('token_keys', 'INSERT')"
        if connection.execute(may).fetchone() != (True,):
            raise Refused("the login must own the tables: use the URL of the owner", field="db")

    def key_ids(self) -> list[str]:
        return [key_id for (key_id,) in self._connection.execute(KEY_IDS.encode())]

    def change_keys(self, sql: str, values: Sequence[Value]) -> None:
        self._connection.execute(POSTGRES.render(sql).encode(), values)

    def read_all_tenants(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        with self._connection.transaction():
            self._connection.execute("SET LOCAL ROLE wopr_clockwork")
            return self._connection.execute(POSTGRES.render(sql).encode(), values).fetchall()

    def read(self, tenant: str, sql: str, values: Sequence[Value]) -> list[Row]:
        with self._as_tenant(tenant):
            return self._connection.execute(POSTGRES.render(sql).encode(), values).fetchall()

    def change(self, tenant: str, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        with self._as_tenant(tenant):
            for values in rows:
                self._connection.execute(POSTGRES.render(sql).encode(), values)

    def recount(self) -> None:
        # The function checks a token of the host first. This executes only its last statement,
        # which counts.
        [(body,)] = self._connection.execute(_RECOUNT_BODY.encode()).fetchall()
        with self._connection.transaction():
            self._connection.execute("SET LOCAL ROLE wopr_clockwork")
            self._connection.execute(body.rpartition(";")[2].encode())

    @contextmanager
    def _as_tenant(self, tenant: str) -> Generator[None, None, None]:
        with self._connection.transaction():
            self._connection.execute("SET LOCAL ROLE wopr_tenant")
            self._connection.execute("SELECT set_config('wopr.tenant', %s, true)", (tenant,))
            yield
