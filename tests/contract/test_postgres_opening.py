"""Opening a PostgreSQL store: logins, migrations, and passwords that are not repeated."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.support.postgres.databases import Databases
from tests.support.rows import TENANT, batch, log
from wopr.protocol.errors import Refused, Unavailable
from wopr.store.open import open_store
from wopr.store.port.store import StoreOptions
from wopr.store.postgres import PostgresStore
from wopr.store.postgres.migrations import MIGRATIONS, Migration, migrate, schema_version

pytestmark = pytest.mark.anyio

KEY = b"the tenant key of these tests..."


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    with databases.new(is_empty=True) as url:
        yield url


@pytest.fixture
def login(databases: Databases) -> Iterator[str]:
    """A login without any rights."""
    name = f"l_{uuid4().hex}"
    with psycopg.connect(databases.server, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN".encode())
        yield name
        admin.execute(f"DROP ROLE {name}".encode())


def do(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def name_of(url: str) -> str:
    return url.split("/")[3].partition("?")[0]


def as_login(url: str, login: str) -> str:
    return url.replace("postgres:@", f"{login}:@")


async def test_several_processes_can_start_on_an_empty_database_at_once(empty_url: str) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(empty_url) for _ in range(4)))

    await stores[0].append(TENANT, [batch()])
    assert [await log(store) for store in stores] == [[b"0"]] * 4
    assert (await stores[3].facts()).schema_version == len(MIGRATIONS)
    for store in stores:
        await store.close()


async def test_a_schema_newer_than_the_program_is_refused(postgres_url: str) -> None:
    do(postgres_url, "INSERT INTO wopr.migrations (version) VALUES (99)")
    try:
        with pytest.raises(Refused, match="schema 99"):
            await PostgresStore.open(postgres_url)
    finally:
        do(postgres_url, "DELETE FROM wopr.migrations WHERE version = 99")


async def test_a_migration_is_atomic(empty_url: str) -> None:
    broken = (
        Migration(
            name="broken", scripts=("CREATE TABLE half (n int)", "CREATE TABLE half (n int)")
        ),
    )
    async with await AsyncConnection.connect(empty_url, autocommit=True) as connection:
        with pytest.raises(psycopg.Error):
            await migrate(connection, broken)

        found = await connection.execute("SELECT to_regclass('wopr.half')")
        assert await found.fetchone() == (None,)
        assert await schema_version(connection) == 0


async def test_an_incomplete_index_is_rebuilt(empty_url: str) -> None:
    first = Migration(
        name="first", scripts=("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1), (1)")
    )
    build = "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS t_n ON t (n)"
    online = Migration(name="index", scripts=(build,), online=True)
    async with await AsyncConnection.connect(empty_url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UniqueViolation):
            await migrate(connection, (first, online))
        await connection.execute("DELETE FROM wopr.t")

        await migrate(connection, (first, online))

        valid = await connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'wopr.t_n'::regclass"
        )
        assert await valid.fetchone() == (True,)
        assert await schema_version(connection) == 2


async def test_an_owner_without_superuser_rights_migrates_and_is_bound_by_row_level_security(
    databases: Databases, empty_url: str, login: str
) -> None:
    do(
        databases.server,
        f"ALTER DATABASE {name_of(empty_url)} OWNER TO {login}",
        f"GRANT wopr_service, wopr_clockwork, wopr_tenant TO {login}",
    )

    store = await PostgresStore.open(as_login(empty_url, login))
    await store.append(TENANT, [batch()])

    assert await log(store) == [b"0"]
    assert await store.unfinished_runs(None, 10) == [(TENANT, "run-1")]
    await store.close()
    with psycopg.connect(as_login(empty_url, login)) as owner:
        assert owner.execute("SELECT count(*) FROM wopr.runs").fetchone() == (0,)
    do(empty_url, f"REASSIGN OWNED BY {login} TO postgres", f"DROP OWNED BY {login}")


async def test_a_login_with_only_the_service_role_can_open_a_migrated_database_only(
    databases: Databases, postgres_url: str, empty_url: str, login: str
) -> None:
    do(databases.server, f"GRANT wopr_service TO {login}")
    options = StoreOptions(tenant_key=KEY)
    owner = await PostgresStore.open(postgres_url, options)
    assert "SQL with this login can read every tenant" in (await owner.facts()).settings["tenants"]
    await owner.close()

    store = await PostgresStore.open(as_login(postgres_url, login), options)
    await store.append(TENANT, [batch()])
    assert (await store.facts()).settings["tenants"] == "signed"
    await store.close()

    with pytest.raises(Refused, match="may not create tables"):
        await PostgresStore.open(as_login(empty_url, login))


@pytest.mark.parametrize("own", [None, b"another tenant key of 32 bytes.."])
async def test_the_error_for_an_unknown_host_key_names_a_remedy(
    databases: Databases, postgres_url: str, login: str, own: bytes | None
) -> None:
    do(databases.server, f"GRANT wopr_service TO {login}")

    with pytest.raises(Refused, match="WOPR_HOST_KEY"):
        await PostgresStore.open(as_login(postgres_url, login), StoreOptions(tenant_key=own))


async def test_an_interrupted_opening_is_completed_by_the_next_owner(postgres_url: str) -> None:
    do(
        postgres_url,
        "ALTER POLICY own_rows ON wopr.runs TO PUBLIC USING (true)",
        "DROP POLICY checked_rows ON wopr.runs",
    )

    store = await PostgresStore.open(postgres_url)
    await store.append(TENANT, [batch()])
    await store.close()

    with psycopg.connect(postgres_url) as admin:
        found = admin.execute("SELECT qual FROM pg_policies WHERE tablename = 'runs'").fetchall()
    assert any("signed_tenant" in policy for (policy,) in found)


async def test_the_error_for_a_missing_role_names_a_remedy(
    databases: Databases, empty_url: str, login: str
) -> None:
    do(databases.server, f"GRANT CREATE ON DATABASE {name_of(empty_url)} TO {login}")

    with pytest.raises(Refused, match="CREATE ROLE wopr_service NOLOGIN"):
        await PostgresStore.open(as_login(empty_url, login))

    do(empty_url, f"DROP OWNED BY {login}")


async def test_an_unreachable_server_is_named_without_the_password() -> None:
    with pytest.raises(Unavailable) as refused:
        await open_store("postgresql://u:pw123@127.0.0.1:1/d")

    assert "cannot be reached" in refused.value.message
    assert "pw123" not in refused.value.message


async def test_an_invalid_url_is_refused_without_repeating_it() -> None:
    with pytest.raises(Refused) as refused:
        await open_store("postgresql://u:pw%zz-hidden-word@h/d")

    assert refused.value.details == {"field": "db"}
    assert "hidden-word" not in refused.value.message
    assert refused.value.__suppress_context__


async def test_the_facts_name_the_database_and_not_the_password(postgres_url: str) -> None:
    store = await open_store(postgres_url.replace("postgres:@", "postgres:pw123@"))
    await store.append(TENANT, [batch("run-1", count=3), batch("run-2", count=2)])

    facts = await store.facts()
    await store.close()

    assert (facts.kind, facts.runs, facts.events) == ("postgresql", 2, 5)
    assert "user=postgres" in facts.location
    assert facts.bytes_on_disk > 1_000_000
    assert facts.settings["server_version"].split(".")[0].isdigit()
    assert "pw123" not in repr(facts)
    assert "pw123" not in repr(store)


async def test_without_the_driver_the_message_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("wopr.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(Refused, match=r"wopr\[postgres\]"):
        await open_store("postgresql://u:pw123@h/d")


async def test_a_store_with_all_connections_busy_says_so(postgres_url: str) -> None:
    options = StoreOptions(pool_size=1, pool_timeout_seconds=60)
    store = await PostgresStore.open(postgres_url, options)
    pool = store._db.pool
    assert pool.timeout == 60
    async with pool.connection():
        # Set now, because a busy server may take a while for the first connection.
        pool.timeout = 0.05
        with pytest.raises(Unavailable, match="connections are busy"):
            await store.run(TENANT, "run-1")
        with pytest.raises(Unavailable, match="connections are busy"):
            await store.append(TENANT, [batch()])

    pool.timeout = 60
    await store.append(TENANT, [batch()])

    assert await log(store) == [b"0"]
    await store.close()


async def test_a_statement_that_takes_too_long_is_ended(postgres_url: str) -> None:
    # Enough for the opening statements on a busy server.
    store = await PostgresStore.open(postgres_url, StoreOptions(statement_timeout_seconds=3))

    with pytest.raises(Unavailable, match="took too long"):
        await store._db.read_host("SELECT pg_sleep(600)")

    await store.close()


async def test_reads_continue_after_the_server_closed_its_connections(postgres_url: str) -> None:
    store = await PostgresStore.open(postgres_url)
    await store.append(TENANT, [batch()])

    do(
        postgres_url,
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )

    assert await log(store) == [b"0"]
    await store.append(TENANT, [batch(first=1)])
    await store.close()
