"""An attacker with the service's login and any SQL, beside a host that uses the same login.

The attacker reads the catalogue and the source of every function, sets every variable, and opens
any number of sessions. It has neither the host key nor the login of the owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors, sql

from tests.support.postgres.databases import Databases
from tests.support.postgres.tokens import expiry, host_token, stored_key, tenant_token
from tests.support.rows import OTHER, TENANT, batch, key, log, memory
from wopr.protocol.errors import Unavailable
from wopr.store.port.store import StoreOptions
from wopr.store.postgres import PostgresStore
from wopr.store.postgres.tokens import TENANT as TENANT_KIND
from wopr.store.postgres.tokens import TokenKey

pytestmark = pytest.mark.anyio

Connection: TypeAlias = psycopg.Connection[Any]

KEY = b"the tenant key of these tests..."
FOREIGN = TokenKey.from_bytes(b"the tenant key of another host..")
TABLES = "SELECT tablename FROM pg_policies WHERE schemaname = 'wopr' AND policyname = 'own_rows'"
DEFINERS = """
SELECT p.proname, p.pronargs, ARRAY(SELECT t::regtype::text FROM unnest(p.proargtypes) t)
FROM pg_proc p WHERE p.pronamespace = 'wopr'::regnamespace AND p.prosecdef ORDER BY 1
"""


@pytest.fixture
def login(databases: Databases) -> Iterator[str]:
    """Create the login of the host: a member of the service role and of no other."""
    name = f"l_{uuid4().hex}"
    with psycopg.connect(databases.server, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN IN ROLE wopr_service".encode())
        yield name
        admin.execute(f"DROP ROLE {name}".encode())


@pytest.fixture
async def host(postgres_url: str, login: str) -> AsyncIterator[PostgresStore]:
    """Run a host with that login, which has written a run of one tenant."""
    options = StoreOptions(tenant_key=KEY)
    owner = await PostgresStore.open(postgres_url, options)
    await owner.close()
    store = await PostgresStore.open(postgres_url.replace("postgres:@", f"{login}:@"), options)
    await store.append(TENANT, [batch()])
    await store.put_key(key())
    yield store
    await store.close()


@pytest.fixture
def attacker(postgres_url: str, login: str, host: PostgresStore) -> Iterator[Connection]:
    url = postgres_url.replace("postgres:@", f"{login}:@")
    with psycopg.connect(url, autocommit=True, options="-c search_path=wopr") as connection:
        yield connection


@pytest.fixture
def admin(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def seen(connection: Connection) -> int:
    """Return the number of rows of any tenant that a connection sees."""
    total = 0
    for (table,) in connection.execute(TABLES).fetchall():
        found = connection.execute(
            sql.SQL("SELECT count(*) FROM wopr.{}").format(sql.Identifier(table))
        ).fetchone()
        assert found is not None
        total += found[0]
    return total


def set_variable(connection: Connection, name: str, value: str) -> None:
    connection.execute("SELECT set_config(%s, %s, false)", (name, value))


async def test_a_tenant_s_name_in_a_session_variable_shows_nothing(attacker: Connection) -> None:
    for variable in ("wopr.tenant", "wopr.tenants", "wopr.host"):
        set_variable(attacker, variable, TENANT)

    assert seen(attacker) == 0


@pytest.mark.parametrize(
    "forged",
    [
        TENANT,
        f"{TENANT_KIND}{TENANT}",
        "0" * 64 + "00000000" + "9999999999" + TENANT_KIND + TENANT,
        "zz" * 32 + "00000000" + "9999999999" + TENANT_KIND + TENANT,
    ],
)
async def test_a_token_with_an_invalid_signature_is_refused(
    attacker: Connection, forged: str
) -> None:
    set_variable(attacker, "wopr.token", forged)

    with pytest.raises(psycopg.Error):
        seen(attacker)


async def test_a_token_signed_by_another_key_is_refused(attacker: Connection) -> None:
    set_variable(attacker, "wopr.token", tenant_token(FOREIGN, attacker, TENANT))

    with pytest.raises(psycopg.Error, match="the token is not valid here"):
        seen(attacker)


async def test_a_captured_token_is_useless_in_another_session(
    attacker: Connection, admin: Connection, postgres_url: str, login: str
) -> None:
    with psycopg.connect(postgres_url.replace("postgres:@", f"{login}:@")) as of_host:
        stolen = tenant_token(stored_key(admin), of_host, TENANT)
        set_variable(of_host, "wopr.token", stolen)
        assert seen(of_host) > 0

        set_variable(attacker, "wopr.token", stolen)
        with pytest.raises(psycopg.Error, match="the token is not valid here"):
            seen(attacker)


async def test_an_expired_token_is_refused_even_with_a_later_expiry_written_into_it(
    attacker: Connection, admin: Connection
) -> None:
    past = int(time.time()) - 1
    signed = stored_key(admin).token(attacker.info.backend_pid, past, TENANT_KIND + TENANT)

    for token in (signed, signed.replace(f"{past:010d}", f"{expiry():010d}")):
        set_variable(attacker, "wopr.token", token)
        with pytest.raises(psycopg.Error, match="the token is not valid here"):
            seen(attacker)


async def test_a_token_of_one_tenant_gives_no_access_to_another(
    attacker: Connection, admin: Connection
) -> None:
    set_variable(attacker, "wopr.token", tenant_token(stored_key(admin), attacker, OTHER))
    set_variable(attacker, "wopr.tenant", TENANT)

    assert seen(attacker) == 0
    assert attacker.execute("UPDATE runs SET status = 'completed'").rowcount == 0
    assert attacker.execute("DELETE FROM events").rowcount == 0
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute(
            "INSERT INTO run_tags (tenant, tag, created_at, run_id) VALUES (%s, 't', 1, 'run-1')",
            (TENANT,),
        )


async def test_a_tenant_s_token_can_call_no_cross_tenant_function(
    attacker: Connection, admin: Connection
) -> None:
    set_variable(attacker, "wopr.token", tenant_token(stored_key(admin), attacker, OTHER))

    with pytest.raises(psycopg.Error, match="a token of the host"):
        attacker.execute("SELECT * FROM host_unfinished('', '', 10)")
    set_variable(attacker, "wopr.token", host_token(stored_key(admin), attacker))
    assert attacker.execute("SELECT * FROM host_unfinished('', '', 10)").fetchall() != []


async def test_no_security_definer_function_works_without_a_token(
    attacker: Connection,
) -> None:
    set_variable(attacker, "wopr.tenant", TENANT)
    definers = attacker.execute(DEFINERS).fetchall()

    assert len(definers) > 40
    for name, count, types in definers:
        if name == "signed_tenant":
            continue
        # A function of the hot path has the token as first argument; a name is not a token.
        given = [TENANT if types[0] == "text" else [TENANT]] if count else []
        values = [*given, *([None] * (count - 1))] if name.startswith("signed_") else [None] * count
        marks = ", ".join(f"%s::{type_name}" for type_name in types)
        with pytest.raises(psycopg.Error, match=r"token|hexadecimal"):
            attacker.execute(f"SELECT * FROM {name}({marks})".encode(), values)


async def test_functions_that_accept_a_plain_name_show_and_write_nothing(
    attacker: Connection,
) -> None:
    for call in (
        "tenant_run('acme', 'run-1')",
        "tenant_events('acme', 'run-1', 0, 100)",
        "tenant_logs('acme', '{run-1}', 100)",
    ):
        assert attacker.execute(f"SELECT * FROM {call}".encode()).fetchall() == []
    with pytest.raises(psycopg.Error):
        attacker.execute(
            "SELECT append(%s, %s::jsonb, '{}', NULL)",
            (TENANT, '[{"run": {"run_id": "mine", "workflow_id": "w", "workflow_version": "1", '
             '"status": "running", "created_at": 1, "updated_at": 1, "last_sequence": -1}, '
             '"first": 0}]'),
        )  # fmt: skip
    assert attacker.execute("SELECT lost_hold('{}')").fetchone() is not None


async def test_the_key_is_in_no_source_plan_or_message_visible_to_the_service(
    attacker: Connection, admin: Connection
) -> None:
    key = stored_key(admin)
    told: list[str] = []
    attacker.add_notice_handler(lambda notice: told.append(f"{notice.message_detail} {notice}"))
    for setting in ("debug_print_parse", "debug_print_rewritten", "debug_print_plan"):
        attacker.execute(f"SET {setting} = on".encode())
    attacker.execute("SET client_min_messages = log")
    # The server prints bytes as signed numbers.
    printed = [
        " ".join(str(byte - 256 if byte > 127 else byte) for byte in secret[:8])
        for secret in (key.inner, key.outer)
    ]

    set_variable(attacker, "wopr.token", tenant_token(key, attacker, TENANT))
    attacker.execute("SELECT count(*) FROM runs")
    attacker.execute(
        "SELECT * FROM signed_run(%s, 'run-1')", (tenant_token(key, attacker, TENANT),)
    )
    sources = attacker.execute(
        "SELECT prosrc FROM pg_proc WHERE pronamespace = 'wopr'::regnamespace"
    )

    seen_by_service = "\n".join([*told, *(source for (source,) in sources)])
    assert "token_keys" in seen_by_service
    assert any("plan" in line for line in told)
    for secret in (*printed, key.inner.hex(), key.outer.hex()):
        assert secret not in seen_by_service


@pytest.mark.parametrize(
    "statement",
    [
        "SET ROLE wopr_tenant",
        "SET ROLE wopr_clockwork",
        "SET SESSION AUTHORIZATION postgres",
        "SELECT * FROM wopr.token_keys",
        "COPY wopr.token_keys TO STDOUT",
        "UPDATE wopr.token_keys SET inner_key = ''",
        "CREATE OR REPLACE FUNCTION wopr.token_tenant(token text) RETURNS text LANGUAGE sql "
        "AS $$ SELECT 'acme' $$",
        "ALTER FUNCTION wopr.signed_tenant() SET search_path = public",
        "CREATE TRIGGER mine BEFORE INSERT ON wopr.runs FOR EACH ROW "
        "EXECUTE FUNCTION wopr.tell_change()",
    ],
)
async def test_the_service_cannot_change_the_token_check(
    attacker: Connection, statement: str
) -> None:
    with pytest.raises(psycopg.Error):
        attacker.execute(statement.encode())


async def test_objects_of_an_attacker_do_not_replace_the_checked_ones(
    attacker: Connection,
) -> None:
    attacker.execute("CREATE TEMP TABLE token_keys (key_id text, inner_key bytea, outer_key bytea)")
    key = FOREIGN
    attacker.execute(
        "INSERT INTO pg_temp.token_keys VALUES (%s, %s, %s)", (key.key_id, key.inner, key.outer)
    )
    attacker.execute("CREATE TEMP TABLE token_grace AS SELECT 'infinity'::timestamptz AS until")
    attacker.execute("GRANT ALL ON pg_temp.token_keys, pg_temp.token_grace TO PUBLIC")
    attacker.execute("SET search_path = pg_temp, wopr")
    set_variable(attacker, "wopr.tenant", TENANT)
    assert seen(attacker) == 0

    set_variable(attacker, "wopr.token", tenant_token(key, attacker, TENANT))
    with pytest.raises(psycopg.Error, match="the token is not valid here"):
        attacker.execute("SELECT count(*) FROM wopr.runs")
    # The login cannot be dropped while it owns objects.
    attacker.execute("DROP TABLE pg_temp.token_keys, pg_temp.token_grace")


async def test_statements_of_the_host_show_no_token_to_another_session(
    attacker: Connection, host: PostgresStore
) -> None:
    await asyncio.gather(*(host.run(TENANT, "run-1") for _ in range(5)))

    queries = attacker.execute("SELECT query FROM pg_stat_activity").fetchall()

    assert any("signed_run" in query for (query,) in queries)
    assert not any("9999999999" in query or TENANT_KIND + TENANT in query for (query,) in queries)
    assert not any(FOREIGN.key_id in query for (query,) in queries)


async def test_one_host_reads_and_writes_both_tenants_with_the_same_login(
    host: PostgresStore,
) -> None:
    await host.append(OTHER, [batch("run-2")])

    assert await log(host) == [b"0"]
    assert await host.run(OTHER, "run-1") is None
    assert await host.run(OTHER, "run-2") is not None
    assert len(await host.unfinished_runs(None, 10)) == 2


async def test_a_tenant_with_characters_that_postgresql_cannot_store_is_signed_too(
    host: PostgresStore,
) -> None:
    odd = "a\0b\x1ac ü€"
    await host.append(odd, [batch("odd")])

    assert await host.run(odd, "odd") is not None


async def test_a_host_with_a_wrong_clock_works_because_the_server_s_clock_counts(
    host: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() - 86_400)
    # The token of the open connection has expired; the next connection reads the time.
    with pytest.raises(Unavailable, match="token"):
        await host.run(TENANT, "run-1")

    assert await host.run(TENANT, "run-1") is not None


async def test_processes_of_an_older_version_work_for_an_hour_after_the_migration(
    attacker: Connection, admin: Connection
) -> None:
    set_variable(attacker, "wopr.tenant", TENANT)
    admin.execute("INSERT INTO wopr.token_grace VALUES (now() + interval '1 hour')")
    assert seen(attacker) > 0
    assert attacker.execute("SELECT * FROM host_unfinished('', '', 10)").fetchall() != []

    admin.execute("UPDATE wopr.token_grace SET until = now() - interval '1 second'")

    assert seen(attacker) == 0
    with pytest.raises(psycopg.Error, match="a token of the host"):
        attacker.execute("SELECT * FROM host_unfinished('', '', 10)")


async def test_a_login_can_neither_read_nor_move_the_position_of_an_audit_sink(
    attacker: Connection,
) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute("SELECT * FROM audit_sinks")
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute("INSERT INTO audit_sinks VALUES ('a', 999, 999)")
    with pytest.raises(psycopg.Error, match="this needs a token of the host"):
        attacker.execute("SELECT host_put_sink_position('a', 999, 999)")


@pytest.mark.parametrize(
    ("table", "column"),
    [("run_tags", "tag"), ("events", "body"), ("memories", "content")],
)
async def test_planner_estimates_reveal_no_content(
    host: PostgresStore, attacker: Connection, admin: Connection, table: str, column: str
) -> None:
    for number in range(20):
        await host.append(TENANT, [batch(f"tagged-{number}", tags=("merger with Initech",))])
        await host.put_memory(TENANT, memory(f"m-{number}", content="Initech is bought in May"))
    admin.execute(f"ANALYZE wopr.{table}".encode())

    def estimate(guess: bytes) -> int:
        # The join shows the estimated share of the rows, of which the policy shows none.
        [(plan,)] = attacker.execute(
            sql.SQL(
                "EXPLAIN (FORMAT JSON) SELECT 1 FROM {} t JOIN generate_series(1, 1000000) g"
                " ON (t.{} < {} OR g = -1)"
            ).format(
                sql.Identifier(table),
                sql.Identifier(column),
                guess if table == "events" else guess.decode(),
            )
        ).fetchall()
        return int(plan[0]["Plan"]["Plan Rows"])

    assert estimate(b" ") == estimate(b"~")
    # With statistics the estimates differ, so the planner would reveal the content.
    collect = f"ALTER TABLE wopr.{table} ALTER COLUMN {column} SET STATISTICS"
    admin.execute(f"{collect} 100".encode())
    admin.execute(f"ANALYZE wopr.{table}".encode())
    assert estimate(b" ") < estimate(b"~")
    admin.execute(f"{collect} 0".encode())


async def test_tenant_content_has_no_statistics_after_a_migration_from_any_version(
    admin: Connection, postgres_url: str
) -> None:
    admin.execute("ALTER TABLE wopr.run_tags ALTER COLUMN tag SET STATISTICS 100")

    await (await PostgresStore.open(postgres_url, StoreOptions(tenant_key=KEY))).close()

    found = admin.execute(
        "SELECT attstattarget FROM pg_attribute"
        " WHERE attrelid = 'wopr.run_tags'::regclass AND attname = 'tag'"
    ).fetchone()
    assert found == (0,)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO encryption_keys VALUES ('deadbeef', 1)",
        "SELECT host_add_encryption_key('deadbeef', 1)",
        "INSERT INTO audit_checkpoints VALUES (99, '00', 'AAAA', 'AAAA', '')",
        "SELECT host_put_checkpoint(99, '00', 'AAAA', 'AAAA', '')",
    ],
)
async def test_a_login_can_add_neither_a_foreign_key_nor_a_checkpoint(
    attacker: Connection, statement: str
) -> None:
    with pytest.raises(psycopg.Error, match=r"permission denied|a token of the host"):
        attacker.execute(statement)
