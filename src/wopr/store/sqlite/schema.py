"""The tables, as numbered migrations; `PRAGMA user_version` says how many a file has had.

A migration that was released is never edited: a change is a new entry at the end.
"""

from __future__ import annotations

import sqlite3

from wopr.protocol.errors import Refused
from wopr.store.port.runs import OBSERVED_PREFIX
from wopr.store.sqlite.schema_audit import AUDIT, AUDIT_SINKS
from wopr.store.sqlite.schema_feedback import FEEDBACK, SIGNALS
from wopr.store.sqlite.schema_fleet import FLEET, FLEET_PUSHES, FLEET_WAITS
from wopr.store.sqlite.schema_projections import OBSERVED_PROJECTIONS, PROJECTIONS
from wopr.store.sqlite.schema_secrets import SECRETS
from wopr.store.sqlite.schema_traces import TRACES
from wopr.store.sqlite.schema_usage import OTHER_USAGE, USAGE_TABLES
from wopr.store.sqlite.schema_webhooks import WEBHOOKS

# Every index on `runs` is paid for at each new run, so there is one per way to list and the rest
# are partial: they hold only the few runs they are about.
_FIRST = (
    """
    CREATE TABLE runs (
        run_id           TEXT NOT NULL PRIMARY KEY,
        tenant           TEXT NOT NULL,
        workflow_id      TEXT NOT NULL,
        workflow_version TEXT NOT NULL,
        status           TEXT NOT NULL,
        created_at       INTEGER NOT NULL,
        updated_at       INTEGER NOT NULL,
        last_sequence    INTEGER NOT NULL,
        ended_at         INTEGER,
        wake_at          INTEGER,
        parent_run_id    TEXT,
        parent_node_id   TEXT,
        tags             BLOB,
        wish             BLOB,
        sealed           BLOB,
        snapshot         BLOB,
        CHECK (ended_at IS NULL OR (wake_at IS NULL AND sealed IS NULL))
    )
    """,
    "CREATE INDEX runs_newest ON runs (tenant, created_at, run_id)",
    "CREATE INDEX runs_by_status ON runs (tenant, status, created_at, run_id)",
    "CREATE INDEX runs_by_workflow ON runs (tenant, workflow_id, created_at, run_id)",
    """
    CREATE INDEX runs_by_parent ON runs (tenant, parent_run_id, created_at, run_id)
    WHERE parent_run_id IS NOT NULL
    """,
    "CREATE INDEX runs_due ON runs (wake_at, run_id) WHERE wake_at IS NOT NULL",
    "CREATE INDEX runs_unfinished ON runs (tenant, run_id) WHERE ended_at IS NULL",
    "CREATE INDEX runs_ended ON runs (ended_at, run_id) WHERE ended_at IS NOT NULL",
    """
    CREATE TABLE run_tags (
        tenant     TEXT NOT NULL,
        tag        TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        run_id     TEXT NOT NULL,
        PRIMARY KEY (tenant, tag, created_at, run_id)
    ) WITHOUT ROWID
    """,
    # No tenant here: a reader comes through the run's row, which has it, in the same statement.
    """
    CREATE TABLE events (
        run_id   TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        type     TEXT NOT NULL,
        body     BLOB NOT NULL,
        PRIMARY KEY (run_id, sequence)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE artifacts (
        run_id        TEXT NOT NULL,
        artifact_id   TEXT NOT NULL,
        node_id       TEXT NOT NULL,
        artifact_type TEXT NOT NULL,
        created_at    INTEGER NOT NULL,
        body          BLOB NOT NULL,
        PRIMARY KEY (run_id, artifact_id)
    )
    """,
    # What retention took away, so that a later request can be told from one for an unknown run.
    """
    CREATE TABLE expired_runs (
        tenant   TEXT NOT NULL,
        run_id   TEXT NOT NULL,
        ended_at INTEGER NOT NULL,
        PRIMARY KEY (tenant, run_id)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE workflows (
        place         INTEGER PRIMARY KEY,
        tenant        TEXT NOT NULL,
        workflow_id   TEXT NOT NULL,
        version       TEXT NOT NULL,
        digest        BLOB NOT NULL,
        body          BLOB NOT NULL,
        registered_at INTEGER NOT NULL,
        UNIQUE (tenant, workflow_id, version)
    )
    """,
    "CREATE INDEX workflows_newest ON workflows (tenant, workflow_id, registered_at, place)",
    """
    CREATE TABLE api_keys (
        key_id      TEXT NOT NULL PRIMARY KEY,
        tenant      TEXT NOT NULL,
        name        TEXT NOT NULL,
        role        TEXT NOT NULL,
        scopes      BLOB NOT NULL,
        key_hash    BLOB NOT NULL UNIQUE,
        created_at  INTEGER NOT NULL,
        is_test     INTEGER NOT NULL,
        expires_at  INTEGER,
        revoked_at  INTEGER,
        replaced_by TEXT
    )
    """,
    "CREATE INDEX api_keys_newest ON api_keys (tenant, created_at, key_id)",
    """
    CREATE TABLE answers (
        tenant         TEXT NOT NULL,
        key_hash       BLOB NOT NULL,
        request_digest BLOB NOT NULL,
        status         INTEGER NOT NULL,
        body           BLOB NOT NULL,
        created_at     INTEGER NOT NULL,
        PRIMARY KEY (tenant, key_hash)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX answers_by_age ON answers (created_at)",
    """
    CREATE TABLE invocations (
        tenant        TEXT NOT NULL,
        invocation_id TEXT NOT NULL,
        run_id        TEXT NOT NULL,
        state         TEXT NOT NULL,
        claimed_at    INTEGER NOT NULL,
        outcome       BLOB,
        PRIMARY KEY (tenant, invocation_id)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX invocations_by_age ON invocations (claimed_at)",
    "CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
)

_AGENTS = (
    # Whether the run ever suspended: one that did not ends without a look at its suspensions.
    "ALTER TABLE runs ADD COLUMN has_suspended INTEGER NOT NULL DEFAULT 0",
    # `place` is the run and the interrupt in one text, the second half of a page's key.
    """
    CREATE TABLE suspensions (
        run_id       TEXT NOT NULL,
        interrupt_id TEXT NOT NULL,
        tenant       TEXT NOT NULL,
        place        TEXT NOT NULL,
        node_id      TEXT NOT NULL,
        workflow_id  TEXT NOT NULL,
        kind         TEXT NOT NULL,
        created_at   INTEGER NOT NULL,
        expires_at   INTEGER,
        body         BLOB NOT NULL,
        PRIMARY KEY (run_id, interrupt_id)
    )
    """,
    "CREATE INDEX suspensions_newest ON suspensions (tenant, created_at, place)",
    "CREATE INDEX suspensions_by_kind ON suspensions (tenant, kind, created_at, place)",
    "CREATE INDEX suspensions_by_workflow ON suspensions (tenant, workflow_id, created_at, place)",
    "CREATE INDEX suspensions_by_run ON suspensions (tenant, run_id, created_at, place)",
    """
    CREATE TABLE agents (
        place         INTEGER PRIMARY KEY,
        tenant        TEXT NOT NULL,
        agent_id      TEXT NOT NULL,
        version       TEXT NOT NULL,
        digest        BLOB NOT NULL,
        body          BLOB NOT NULL,
        registered_at INTEGER NOT NULL,
        UNIQUE (tenant, agent_id, version)
    )
    """,
    "CREATE INDEX agents_newest ON agents (tenant, agent_id, registered_at, place)",
    "CREATE INDEX agents_in_order ON agents (tenant, place)",
    """
    CREATE TABLE memories (
        place      INTEGER PRIMARY KEY,
        tenant     TEXT NOT NULL,
        memory_ref TEXT NOT NULL,
        memory_id  TEXT NOT NULL,
        content    TEXT NOT NULL,
        tags       BLOB,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        run_id     TEXT NOT NULL,
        UNIQUE (tenant, memory_ref, memory_id)
    )
    """,
    "CREATE INDEX memories_newest ON memories (tenant, memory_ref, created_at, place)",
    """
    CREATE INDEX memories_expiring ON memories (expires_at, place) WHERE expires_at IS NOT NULL
    """,
    """
    CREATE TABLE memory_tags (
        tenant     TEXT NOT NULL,
        memory_ref TEXT NOT NULL,
        tag        TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        place      INTEGER NOT NULL,
        PRIMARY KEY (tenant, memory_ref, tag, created_at, place)
    ) WITHOUT ROWID
    """,
)

_FORKS = (
    "ALTER TABLE runs ADD COLUMN source_run_id TEXT",
    "ALTER TABLE runs ADD COLUMN fork BLOB",
    """
    CREATE INDEX runs_by_source ON runs (tenant, source_run_id, created_at, run_id)
    WHERE source_run_id IS NOT NULL
    """,
)

_MISSING_TYPES = (
    "ALTER TABLE runs ADD COLUMN missing_types BLOB",
    """
    CREATE INDEX runs_waiting_for_code ON runs (tenant, created_at, run_id)
    WHERE missing_types IS NOT NULL
    """,
)

# The number of active runs of each tenant is one row. The column `shard` is always 0: on PostgreSQL
# a tenant has several rows.
_RUN_COUNTS = (
    "ALTER TABLE runs ADD COLUMN root_run_id TEXT",
    "ALTER TABLE runs ADD COLUMN descendants INTEGER NOT NULL DEFAULT 0",
    """
    CREATE TABLE active_runs (
        tenant TEXT NOT NULL,
        shard  INTEGER NOT NULL,
        runs   INTEGER NOT NULL,
        PRIMARY KEY (tenant, shard)
    ) WITHOUT ROWID
    """,
    f"""
    INSERT INTO active_runs (tenant, shard, runs)
    SELECT tenant, 0, count(*) FROM runs
    WHERE ended_at IS NULL AND run_id NOT GLOB '{OBSERVED_PREFIX}*' GROUP BY tenant
    """,
)

_DUE_BY_TENANT = (
    """
    CREATE INDEX runs_due_by_tenant ON runs (tenant, wake_at, run_id)
    WHERE wake_at IS NOT NULL
    """,
)

# `recovering` has at most two rows: the runs that are being recovered now, and those that were
# suspects when the process started.
_QUARANTINE = (
    "ALTER TABLE runs ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN quarantined_at INTEGER",
    """
    CREATE INDEX runs_with_crashes ON runs (tenant, run_id) WHERE crashes > 0
    """,
    "CREATE TABLE recovering (place INTEGER PRIMARY KEY, runs BLOB NOT NULL)",
)

_ENCRYPTION = (
    """
    CREATE TABLE encryption_keys (
        key_id   TEXT NOT NULL PRIMARY KEY,
        added_at INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
)

_QUARANTINE_LIST = (
    """
    CREATE INDEX runs_in_quarantine ON runs (tenant, created_at, run_id)
    WHERE quarantined_at IS NOT NULL AND ended_at IS NULL
    """,
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _FIRST,
    _AGENTS,
    _FORKS,
    FEEDBACK,
    WEBHOOKS,
    AUDIT,
    PROJECTIONS,
    FLEET,
    FLEET_WAITS,
    OBSERVED_PROJECTIONS,
    SECRETS,
    TRACES,
    SIGNALS,
    FLEET_PUSHES,
    _MISSING_TYPES,
    _RUN_COUNTS,
    _DUE_BY_TENANT,
    _QUARANTINE,
    AUDIT_SINKS,
    USAGE_TABLES,
    _ENCRYPTION,
    OTHER_USAGE,
    _QUARANTINE_LIST,
)


def schema_version(connection: sqlite3.Connection) -> int:
    """How many migrations this database has had."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def migrate(connection: sqlite3.Connection) -> None:
    """Apply what is missing, all or nothing. Raises `Refused` for a newer schema than this one."""
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
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
