"""`Store` on PostgreSQL: its parts on one database."""

from __future__ import annotations

import anyio
import psycopg
from psycopg import AsyncConnection

from wopr.protocol.errors import Refused, Unavailable
from wopr.store.port import StoreFacts
from wopr.store.port.store import StoreOptions
from wopr.store.postgres.append import AppendBatcher
from wopr.store.postgres.database import Database
from wopr.store.postgres.faults import translate_error
from wopr.store.postgres.maintenance import PostgresMaintenance
from wopr.store.postgres.migrations import MIGRATIONS, migrate
from wopr.store.postgres.peers import PostgresPeers
from wopr.store.postgres.pool import Address, parse_address
from wopr.store.postgres.runs import PostgresRunLog
from wopr.store.postgres.schema_constants import TOKEN_REFUSED
from wopr.store.postgres.tokens import TokenKey, ensure_token_key, unknown_key_error
from wopr.store.tables.audit import AuditTable
from wopr.store.tables.credentials import KeyTable, SecretTable, SessionTable
from wopr.store.tables.definitions import AgentTable, WorkflowTable
from wopr.store.tables.dialect import Row
from wopr.store.tables.encryption_keys import EncryptionKeyTable
from wopr.store.tables.feedback.annotations import AnnotationTable
from wopr.store.tables.feedback.judges import JudgeTable
from wopr.store.tables.feedback.reviews import ReviewQueueTable
from wopr.store.tables.fleet.projections import ProjectionTable
from wopr.store.tables.fleet.retention import FleetRetentionTable
from wopr.store.tables.fleet.runs import FleetRunTable
from wopr.store.tables.fleet.traces import TraceTable
from wopr.store.tables.memories import MemoryTable
from wopr.store.tables.runs.idempotency import IdempotencyTable
from wopr.store.tables.runs.suspensions import SuspensionTable
from wopr.store.tables.usage import UsageTable
from wopr.store.tables.webhooks import DeliveryTable, WebhookTable

# A write, because a read does not fail on a full disk or a read-only server.
_PROBE = """
INSERT INTO probes (name, asked) VALUES ('ready', 1)
ON CONFLICT (name) DO UPDATE SET asked = probes.asked + 1 RETURNING 1
"""
_PROBE_SECONDS = 5.0

_HAS_ROW_SECURITY = """
SELECT NOT (rolsuper OR rolbypassrls) FROM pg_roles WHERE rolname = current_user
"""

_TOTALS = "SELECT runs, events FROM host_totals()"
_VERSION = "SELECT max(version) FROM migrations"
_SIZE = "SELECT pg_database_size(current_database())"
_SETTINGS = """
SELECT name, setting FROM pg_settings
WHERE name IN ('server_version', 'synchronous_commit', 'fsync', 'statement_timeout')
ORDER BY name
"""
_ROLE = "SELECT current_user::text"
_KEY_PROBE = "SELECT host_held()"
_SIGNED = "signed"
_SIGNED_BY_OWNER = (
    "signed, but SQL with this login can read every tenant: serve with a login that is only a "
    "member of wopr_service"
)
_IS_COPYING = "SELECT to_regclass('wopr.moving') IS NOT NULL"


class PostgresStore(
    PostgresRunLog,
    PostgresMaintenance,
    SuspensionTable,
    WorkflowTable,
    AgentTable,
    MemoryTable,
    SecretTable,
    TraceTable,
    UsageTable,
    KeyTable,
    IdempotencyTable,
    AnnotationTable,
    ReviewQueueTable,
    JudgeTable,
    SessionTable,
    EncryptionKeyTable,
    WebhookTable,
    DeliveryTable,
    AuditTable,
    ProjectionTable,
    FleetRunTable,
    FleetRetentionTable,
):
    """`Store` on one PostgreSQL database."""

    def __init__(self, db: Database, appends: AppendBatcher, *, owns_tables: bool) -> None:
        super().__init__(db, appends)
        # The processes that share the database.
        self.peers = PostgresPeers(db, owns_tables=owns_tables)

    @classmethod
    async def open(
        cls, url: str, options: StoreOptions | None = None, *, is_copy_target: bool = False
    ) -> PostgresStore:
        """Connect to the database at `url`, and migrate it if needed.

        Raises `Refused` if the schema is newer than this program's, if a database is being copied
        into this one, or if the database does not know the tenant key. Raises `Unavailable` if the
        server cannot be reached.
        """
        address, options = parse_address(url), options or StoreOptions()
        key, owns_tables = await _migrate(
            address, options.tenant_key, is_copy_target=is_copy_target
        )
        db = Database(address, options, key)
        await db.open()
        store = cls(db, AppendBatcher(db), owns_tables=owns_tables)
        try:
            await store._require_row_security()
            await store._require_known_key()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Finish queued appends and disconnect."""
        with anyio.CancelScope(shield=True):
            await self._appends.finish()
            await self._db.close()

    async def check_ready(self) -> None:
        """Raise `Unavailable` unless the store accepts a write and has this program's schema."""
        with anyio.move_on_after(_PROBE_SECONDS):
            await self._db.write_host(_PROBE)
            if self._db.is_disk_full:
                # The probe updates a row, which may succeed on a full disk.
                raise Unavailable("the database's disk was full some seconds ago")
            [(version,)] = await self._db.read_host(_VERSION)
            if version < len(MIGRATIONS):
                raise Unavailable(f"the database has schema {version} of {len(MIGRATIONS)}")
            return
        raise Unavailable(f"the store has not written for {_PROBE_SECONDS:.0f} seconds")

    async def facts(self) -> StoreFacts:
        """Return what `wopr doctor` prints."""
        [(runs, events)] = await self._db.read_host(_TOTALS)
        [(version,)] = await self._db.read_host(_VERSION)
        [(size,)] = await self._db.read_host(_SIZE)
        [(role,)] = await self._db.read_host(_ROLE)
        return StoreFacts(
            kind="postgresql",
            location=self._db.address.location,
            schema_version=version,
            runs=runs,
            events=events,
            bytes_on_disk=size,
            settings={
                "role": role,
                "tenants": _SIGNED_BY_OWNER if self.peers.owns_tables else _SIGNED,
                **dict(await self._db.read_host(_SETTINGS)),
            },
        )

    async def _require_row_security(self) -> None:
        [(has_row_security,)] = await self._db.read_host(_HAS_ROW_SECURITY)
        if not has_row_security:
            raise Refused(
                "row-level security must apply to the role wopr_service: remove SUPERUSER and "
                "BYPASSRLS from it",
                field="db",
            )

    async def _require_known_key(self) -> None:
        try:
            await self._db.read_host(_KEY_PROBE)
        except Unavailable as error:
            if getattr(error.__cause__, "sqlstate", None) != TOKEN_REFUSED:
                raise
            raise unknown_key_error() from error


async def _migrate(
    address: Address, tenant_key: bytes | None, *, is_copy_target: bool
) -> tuple[TokenKey, bool]:
    """Migrate the schema; return the key for tokens, and whether the login owns the tables."""
    try:
        connection: AsyncConnection[Row]
        async with await AsyncConnection.connect(
            address.conninfo_with(), autocommit=True
        ) as connection:
            await migrate(connection)
            if not is_copy_target:
                await _require_complete_copy(connection)
            return await ensure_token_key(connection, tenant_key)
    except psycopg.Error as error:
        raise translate_error(error) from error


async def _require_complete_copy(connection: AsyncConnection[Row]) -> None:
    found = await connection.execute(_IS_COPYING)
    if await found.fetchone() == (True,):
        raise Refused(
            "a database is being copied into this one: let `wopr migrate-store` finish first",
            field="db",
        )
