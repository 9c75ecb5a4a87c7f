"""The store itself: its parts on one database."""

from __future__ import annotations

import time

import anyio
import psycopg
from psycopg import AsyncConnection

from wopr.protocol.errors import Refused, Unavailable
from wopr.store.options import StoreOptions
from wopr.store.port import StoreFacts
from wopr.store.postgres.address import Address, address_of
from wopr.store.postgres.agents import PostgresAgents
from wopr.store.postgres.annotations import PostgresAnnotations
from wopr.store.postgres.audit import PostgresAudit
from wopr.store.postgres.clockwork import PostgresClockwork
from wopr.store.postgres.database import Database
from wopr.store.postgres.faults import translated
from wopr.store.postgres.feedback import PostgresFeedback
from wopr.store.postgres.fleet_clockwork import PostgresFleetClockwork
from wopr.store.postgres.fleet_ingest import PostgresFleetIngest
from wopr.store.postgres.fleet_reads import PostgresFleetReads
from wopr.store.postgres.idempotency import PostgresAnswers, PostgresInvocations
from wopr.store.postgres.judges import PostgresJudges
from wopr.store.postgres.keys import PostgresKeys
from wopr.store.postgres.lanes import Lanes
from wopr.store.postgres.memory import PostgresMemories
from wopr.store.postgres.outbox import PostgresOutbox
from wopr.store.postgres.peers import PostgresPeers
from wopr.store.postgres.projections import PostgresProjections
from wopr.store.postgres.queues import PostgresQueues
from wopr.store.postgres.recovery import PostgresRecovery
from wopr.store.postgres.runs import PostgresRunLog
from wopr.store.postgres.schema import MIGRATIONS, migrate
from wopr.store.postgres.schema_tokens import TOKEN_REFUSED
from wopr.store.postgres.secrets import PostgresSecrets
from wopr.store.postgres.suspensions import PostgresSuspensions
from wopr.store.postgres.tokens import TokenKey, token_key, unknown_key
from wopr.store.postgres.traces import PostgresTraces
from wopr.store.postgres.usage import PostgresUsage
from wopr.store.postgres.webhooks import PostgresWebhooks
from wopr.store.postgres.workflows import PostgresWorkflows
from wopr.store.sql.dialect import Row

# A real write, because only that shows a full disk or a server that only reads.
_PROBE = """
INSERT INTO probes (name, asked) VALUES ('ready', 1)
ON CONFLICT (name) DO UPDATE SET asked = probes.asked + 1 RETURNING 1
"""
_PROBE_SECONDS = 5.0

_IS_BOUND = """
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
_ENCRYPTION_KEYS = "SELECT key_id FROM encryption_keys ORDER BY added_at, key_id"
_ADD_ENCRYPTION_KEY = "SELECT host_add_encryption_key(%s, %s)"
_KEY_PROBE = "SELECT host_held()"
_SIGNED = "signed"
_WEAKER = (
    "signed, but SQL with this login can read every tenant: serve with a login that is only a "
    "member of wopr_service"
)
_IS_FILLING = "SELECT to_regclass('wopr.moving') IS NOT NULL"


class PostgresStore(
    PostgresRunLog,
    PostgresClockwork,
    PostgresRecovery,
    PostgresSuspensions,
    PostgresWorkflows,
    PostgresAgents,
    PostgresMemories,
    PostgresSecrets,
    PostgresTraces,
    PostgresUsage,
    PostgresKeys,
    PostgresAnswers,
    PostgresInvocations,
    PostgresAnnotations,
    PostgresFeedback,
    PostgresQueues,
    PostgresJudges,
    PostgresWebhooks,
    PostgresOutbox,
    PostgresAudit,
    PostgresProjections,
    PostgresFleetIngest,
    PostgresFleetReads,
    PostgresFleetClockwork,
):
    """`Store` on one PostgreSQL database."""

    # Whether the login can read the key that signs tenants.
    _owns_tables: bool

    @classmethod
    async def open(
        cls, url: str, options: StoreOptions | None = None, *, is_filling: bool = False
    ) -> PostgresStore:
        """Connect to the database at `url`, migrating it first where that is needed.

        Raises `Refused` when the schema is newer than this program's, when another process is
        moving a database into this one, or when the database does not know the tenant
        key; and `Unavailable` when the server cannot be reached.
        """
        address, options = address_of(url), options or StoreOptions()
        key, owns_tables = await _migrate(address, options.tenant_key, is_filling=is_filling)
        db = Database(address, options, key)
        await db.open()
        store = cls(db, Lanes(db))
        store._owns_tables = owns_tables
        try:
            await store._require_bound_role()
            await store._require_known_key()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Finish what is queued and disconnect."""
        with anyio.CancelScope(shield=True):
            await self._lanes.finish()
            await self._db.close()

    async def ready(self) -> None:
        """Raise `Unavailable` unless a write is taken now, on the schema that this program knows."""
        with anyio.move_on_after(_PROBE_SECONDS):
            await self._db.tell(_PROBE)
            if self._db.is_full:
                # The probe changes a row in its place, which needs no more room.
                raise Unavailable("the database's disk was full a moment ago")
            [(version,)] = await self._db.ask(_VERSION)
            if version < len(MIGRATIONS):
                raise Unavailable(f"the database has schema {version} of {len(MIGRATIONS)}")
            return
        raise Unavailable(f"the store has not written for {_PROBE_SECONDS:.0f} seconds")

    @property
    def peers(self) -> PostgresPeers:
        """The processes that share the database."""
        return PostgresPeers(self._db, owns_tables=self._owns_tables)

    async def encryption_keys(self) -> list[str]:
        """Ids of the keys that stored content may be encrypted with."""
        return [key_id for (key_id,) in await self._db.ask(_ENCRYPTION_KEYS)]

    async def add_encryption_key(self, key_id: str) -> None:
        """Record that content is encrypted with a key from now on."""
        await self._db.tell(_ADD_ENCRYPTION_KEY, (key_id, round(time.time() * 1000)))

    async def facts(self) -> StoreFacts:
        """What `wopr doctor` prints."""
        [(runs, events)] = await self._db.ask(_TOTALS)
        [(version,)] = await self._db.ask(_VERSION)
        [(size,)] = await self._db.ask(_SIZE)
        [(role,)] = await self._db.ask(_ROLE)
        return StoreFacts(
            kind="postgresql",
            location=self._db.address.location,
            schema_version=version,
            runs=runs,
            events=events,
            bytes_on_disk=size,
            settings={
                "role": role,
                "tenants": _WEAKER if self._owns_tables else _SIGNED,
                **dict(await self._db.ask(_SETTINGS)),
            },
        )

    async def _require_bound_role(self) -> None:
        [(is_bound,)] = await self._db.ask(_IS_BOUND)
        if not is_bound:
            raise Refused(
                "the service's role must be bound by row-level security: take SUPERUSER and "
                "BYPASSRLS from wopr_service",
                field="db",
            )

    async def _require_known_key(self) -> None:
        try:
            await self._db.ask(_KEY_PROBE)
        except Unavailable as error:
            if getattr(error.__cause__, "sqlstate", None) != TOKEN_REFUSED:
                raise
            raise unknown_key() from error


async def _migrate(
    address: Address, tenant_key: bytes | None, *, is_filling: bool
) -> tuple[TokenKey, bool]:
    """Migrate; answers with the key that signs tenants, and whether the login owns the tables."""
    try:
        connection: AsyncConnection[Row]
        async with await AsyncConnection.connect(
            address.connecting(), autocommit=True
        ) as connection:
            await migrate(connection)
            if not is_filling:
                await _require_whole(connection)
            return await token_key(connection, tenant_key)
    except psycopg.Error as error:
        raise translated(error) from error


async def _require_whole(connection: AsyncConnection[Row]) -> None:
    found = await connection.execute(_IS_FILLING)
    if await found.fetchone() == (True,):
        raise Refused(
            "a database is being moved into this one: let `wopr migrate-store` finish first",
            field="db",
        )
