"""Row-level security, tested as the role of the service. The tables come from the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg import errors, sql

from tests.support.postgres.databases import Databases
from tests.support.postgres.tokens import stored_key, tenant_token
from tests.support.rows import OTHER, TENANT, batch, key
from wopr.store.postgres import PostgresStore

pytestmark = pytest.mark.anyio

Connection: TypeAlias = psycopg.Connection[Any]

# They contain no tenant's data.
WITHOUT_TENANT = {
    "audit_sinks",
    "audit_checkpoints",
    "probes",
    "migrations",
    "processes",
    "leases",
    "shared_facts",
    # Read by the functions that check tokens, and by the owner.
    "token_keys",
    "token_grace",
    # Ids of keys.
    "encryption_keys",
    # Names of tenants and runs, and no other data of them.
    "procrastinate_jobs",
    "procrastinate_workers",
    "procrastinate_events",
    "procrastinate_periodic_defers",
}

TABLES = """
SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity,
    EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'wopr' AND c.relkind IN ('r', 'p')
"""
COLUMNS = """
SELECT a.attname, CASE t.typtype WHEN 'd' THEN 'text' ELSE t.typname END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND a.attnotnull AND a.attidentity = ''
"""


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    with databases.new() as made:
        yield made


@pytest.fixture(scope="module")
def admin(url: str) -> Iterator[Connection]:
    """Connect as an administrator without row-level security, with rows of two tenants."""
    with psycopg.connect(url, autocommit=True, options="-c search_path=wopr") as connection:
        for table in tenant_tables(connection):
            for n, tenant in enumerate((TENANT, OTHER)):
                insert(connection, table, tenant, n)
        yield connection


@pytest.fixture
def service(url: str, admin: Connection) -> Iterator[Connection]:
    """Connect as the service."""
    options = "-c role=wopr_service -c search_path=wopr"
    with psycopg.connect(url, autocommit=True, options=options) as connection:
        yield connection


def tenant_tables(connection: Connection) -> list[str]:
    return [name for name, _, has_tenant in connection.execute(TABLES) if has_tenant]


def insert(connection: Connection, table: str, tenant: str, n: int) -> None:
    """Insert a row of this tenant into a table with any columns."""
    values: dict[str, object] = {}
    for column, kind in connection.execute(COLUMNS, (f"wopr.{table}",)):
        samples = {"text": f"{tenant} {column}", "int8": n, "bytea": tenant.encode(), "bool": False}
        values[column] = tenant if column == "tenant" else samples[kind]
    names = sql.SQL(", ").join(map(sql.Identifier, values))
    marks = sql.SQL(", ").join(sql.Placeholder() * len(values))
    into = sql.SQL("INSERT INTO wopr.{} ({}) VALUES ({})")
    connection.execute(into.format(sql.Identifier(table), names, marks), list(values.values()))


def owners(connection: Connection, table: str) -> list[str]:
    found = connection.execute(sql.SQL("SELECT tenant FROM {}").format(sql.Identifier(table)))
    return sorted(row[0] for row in found)


def act_as(
    admin: Connection, connection: Connection, tenant: str, *, in_transaction: bool = False
) -> None:
    """Name a tenant by a token signed for this connection, like the host does."""
    token = tenant_token(stored_key(admin), connection, tenant)
    connection.execute("SELECT set_config('wopr.token', %s, %s)", (token, in_transaction))


def test_every_table_has_a_tenant_and_forced_row_security_or_is_listed_as_an_exception(
    admin: Connection,
) -> None:
    tables = admin.execute(TABLES).fetchall()

    assert {name for name, _, has_tenant in tables if not has_tenant} == WITHOUT_TENANT
    assert [name for name, is_forced, has_tenant in tables if has_tenant and not is_forced] == []
    assert len(tables) > 25


def test_a_tenant_sees_only_its_own_rows_of_every_table(
    admin: Connection, service: Connection
) -> None:
    for table in tenant_tables(admin):
        act_as(admin, service, OTHER)

        # A trigger may have added rows to a table of counts.
        assert set(owners(service, table)) == {OTHER}, table


def test_without_a_tenant_no_row_is_visible(admin: Connection, service: Connection) -> None:
    for table in tenant_tables(admin):
        assert owners(service, table) == [], table


def test_the_tenant_setting_ends_with_its_transaction(
    admin: Connection, service: Connection
) -> None:
    with service.transaction():
        act_as(admin, service, TENANT, in_transaction=True)
        assert owners(service, "runs") == [TENANT]

    assert owners(service, "runs") == []


def test_rows_of_another_tenant_can_be_neither_changed_nor_deleted_nor_written(
    admin: Connection, service: Connection
) -> None:
    act_as(admin, service, OTHER)
    for table in tenant_tables(admin):
        name, before = sql.Identifier(table), owners(admin, table)
        for statement in (
            sql.SQL("UPDATE {} SET tenant = tenant WHERE tenant = %s"),
            sql.SQL("DELETE FROM {} WHERE tenant = %s"),
        ):
            try:
                touched = service.execute(statement.format(name), (TENANT,)).rowcount
            except errors.InsufficientPrivilege:
                touched = 0
            assert touched == 0, table
        with pytest.raises(errors.InsufficientPrivilege):
            insert(service, table, TENANT, 7)

        assert owners(admin, table) == before, table
        assert set(before) == {TENANT, OTHER}, table


def test_a_row_cannot_be_moved_to_another_tenant(admin: Connection, service: Connection) -> None:
    act_as(admin, service, OTHER)

    with pytest.raises(errors.InsufficientPrivilege):
        service.execute("UPDATE runs SET tenant = %s", (TENANT,))


@pytest.mark.parametrize(
    "statement",
    [
        "SET ROLE wopr_clockwork",
        "SET ROLE wopr_tenant",
        "SELECT * FROM token_keys",
        "INSERT INTO token_keys (key_id, inner_key, outer_key) VALUES ('mine', '', '')",
        "INSERT INTO token_grace VALUES (now() + interval '1 day')",
        "SELECT token_tenant('a')",
        "CREATE FUNCTION wopr.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE runs DISABLE ROW LEVEL SECURITY",
        "DROP POLICY own_rows ON runs",
        "CREATE POLICY mine ON runs USING (true)",
        "ALTER ROLE wopr_service BYPASSRLS",
        "SET row_security = off; SELECT * FROM runs",
        "UPDATE events SET body = ''",
        "UPDATE audit_entries SET body = ''",
        "DELETE FROM audit_entries",
        "INSERT INTO audit_entries VALUES (99, 'acme', '', '')",
        "TRUNCATE events",
        "CREATE TABLE wopr.mine (tenant text)",
    ],
)
def test_the_service_cannot_disable_row_security(
    admin: Connection, service: Connection, statement: str
) -> None:
    service.execute("SET SESSION AUTHORIZATION wopr_service")
    act_as(admin, service, OTHER)

    with pytest.raises(errors.InsufficientPrivilege):
        service.execute(statement.encode())


def test_the_service_owns_nothing_and_bypasses_nothing(admin: Connection) -> None:
    attributes = admin.execute(
        "SELECT rolname, rolsuper OR rolbypassrls OR rolcanlogin FROM pg_roles "
        "WHERE rolname IN ('wopr_service', 'wopr_clockwork', 'wopr_tenant')"
    )
    owned = admin.execute(
        "SELECT count(*) FROM pg_class WHERE relowner IN "
        "('wopr_service'::regrole, 'wopr_clockwork'::regrole, 'wopr_tenant'::regrole)"
    )

    roles = ("wopr_service", "wopr_clockwork", "wopr_tenant")
    assert dict(attributes) == dict.fromkeys(roles, False)
    assert owned.fetchone() == (0,)


def test_security_definer_functions_check_a_token_and_only_the_service_can_call_them(
    admin: Connection,
) -> None:
    definers = admin.execute(
        "SELECT proname, pg_get_userbyid(proowner), proconfig[1], prosrc, "
        "has_function_privilege('public', p.oid, 'EXECUTE') "
        "FROM pg_proc p WHERE pronamespace = 'wopr'::regnamespace AND prosecdef"
    ).fetchall()

    assert len(definers) > 40
    for name, owner, setting, source, is_public in definers:
        crosses = name.startswith("host_")
        assert (owner, is_public) == ("wopr_clockwork" if crosses else "wopr_tenant", False), name
        assert setting == "search_path=wopr, pg_temp", name
        checks = source.split(";")[0] if crosses else source
        assert re.search(r"require_token\('[tf]'\)" if crosses else "token_(tenant|keys)", checks)
        needs_host = name not in ("host_audit_last", "host_audit_append")
        assert ("require_token('t')" in checks) == (crosses and needs_host), name


def test_no_policy_trusts_a_session_variable_of_the_service(admin: Connection) -> None:
    policies = admin.execute(
        "SELECT tablename, roles::text[], qual, with_check FROM pg_policies "
        "WHERE schemaname = 'wopr' AND roles && '{public,wopr_service}'"
    ).fetchall()

    assert {table for table, *_ in policies} == set(tenant_tables(admin))
    for table, roles, qual, with_check in policies:
        assert roles == ["wopr_service"], table
        assert qual == with_check
        assert qual.split("=")[1].split() == "( SELECT signed_tenant() AS signed_tenant))".split()


def test_the_role_of_host_functions_cannot_read_event_bodies(admin: Connection) -> None:
    for column in ("snapshot", "sealed", "wish", "fork", "tags", "workflow_id"):
        seen = admin.execute(
            "SELECT has_column_privilege('wopr_clockwork', 'wopr.runs', %s, 'SELECT')", (column,)
        )
        assert seen.fetchone() == (False,), column
    for table in ("events", "artifacts", "suspensions", "annotations"):
        seen = admin.execute(
            "SELECT has_table_privilege('wopr_clockwork', %s, 'SELECT')", (f"wopr.{table}",)
        )
        assert seen.fetchone() == (False,), table


async def test_a_store_runs_as_the_role_that_these_tests_use(postgres_url: str) -> None:
    store = await PostgresStore.open(postgres_url)
    try:
        await store.append(TENANT, [batch()])
        await store.put_key(key())

        facts = await store.facts()
    finally:
        await store.close()

    assert facts.settings["role"] == "wopr_service"
