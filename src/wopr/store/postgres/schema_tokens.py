"""Signed tenants: row-level security that believes a signature and not a session variable.

The service sees the rows of the tenant whose token is in `wopr.token`; `signed_tenant` checks it.
The functions of the hot path check their token once and then run as the role `wopr_tenant`, whose
policies believe the plain `wopr.tenant`: only these functions run as that role, and each of them
sets the variable itself. The functions that cross tenants need a token of the host.

An attacker who has the service's login reads all of this in the catalogue. A key is only ever a
column of a query, never the value of a variable: `debug_print_plan` would print that.
"""

from __future__ import annotations

from wopr.store.postgres.schema_host import SERVICE
from wopr.store.postgres.schema_peers import DEAD_AFTER_SECONDS
from wopr.store.postgres.schema_reads import TENANT_READS
from wopr.store.postgres.tokens import HOST, TENANT

# Runs the functions that have checked a token. This role cannot log in.
CHECKED = "wopr_tenant"
# The code of what is raised for a token that does not hold.
TOKEN_REFUSED = "WO010"
# So long after the migration processes of an older version, which know no tokens, are served too.
_GRACE = "1 hour"

_AS_CHECKED = "SECURITY DEFINER SET search_path = wopr, pg_temp"

_TABLES = (
    """
    CREATE TABLE token_keys (
        key_id     text NOT NULL PRIMARY KEY,
        inner_key  bytea NOT NULL,
        outer_key  bytea NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
    "CREATE TABLE token_grace (until timestamptz NOT NULL)",
    f"""
    INSERT INTO token_grace SELECT now() + interval '{_GRACE}' WHERE EXISTS (
        SELECT 1 FROM processes
        WHERE beat_at >= clock_timestamp() - interval '{DEAD_AFTER_SECONDS} seconds'
    )
    """,
    f"GRANT SELECT ON token_keys, token_grace TO {CHECKED}",
)

# 64 characters of signature, 8 of the key's id, 10 of the expiry, then the subject. The check stands
# in each function that needs it, because a call of another function would cost a tenth of a read.
_FROM_VALID = """
FROM token_keys k WHERE k.key_id = substr(token, 65, 8) AND sha256(k.outer_key || sha256(
    k.inner_key || convert_to(pg_backend_pid() || ':' || substr(token, 65), 'UTF8')
)) = decode(left(token, 64), 'hex') AND substr(token, 73, 10)::float8 >= date_part('epoch', now())
"""
_TENANT = f"SELECT substr(token, 84) INTO owner {_FROM_VALID} AND substr(token, 83, 1) = '{TENANT}'"
_REFUSE = f"""
IF owner IS NULL THEN
    RAISE EXCEPTION 'the token is not valid here' USING ERRCODE = '{TOKEN_REFUSED}';
END IF
"""
_CHECKS = (
    f"""
    CREATE FUNCTION token_tenant(token text) RETURNS text LANGUAGE plpgsql STABLE AS $$
    DECLARE
        owner text;
    BEGIN
        {_TENANT};
        {_REFUSE};
        RETURN owner;
    END
    $$
    """,
    f"""
    CREATE FUNCTION signed_tenant() RETURNS text LANGUAGE plpgsql STABLE {_AS_CHECKED} AS $$
    DECLARE
        token text := nullif(current_setting('wopr.token', true), '');
        owner text;
    BEGIN
        IF token IS NULL THEN
            RETURN (
                SELECT nullif(current_setting('wopr.tenant', true), '') FROM token_grace
                WHERE now() < until LIMIT 1
            );
        END IF;
        {_TENANT};
        {_REFUSE};
        RETURN owner;
    END
    $$
    """,
    # The audit log is written in the transaction of the tenant that an entry is about.
    f"""
    CREATE FUNCTION require_token(is_host boolean) RETURNS void
    LANGUAGE plpgsql STABLE {_AS_CHECKED} AS $$
    DECLARE
        token text := nullif(current_setting('wopr.token', true), '');
    BEGIN
        IF token IS NULL AND EXISTS (SELECT 1 FROM token_grace WHERE now() < until) THEN
            RETURN;
        END IF;
        PERFORM 1 {_FROM_VALID} AND (substr(token, 83, 1) = '{HOST}' OR NOT is_host);
        IF NOT FOUND THEN
            RAISE EXCEPTION 'this needs a token of the host' USING ERRCODE = '{TOKEN_REFUSED}';
        END IF;
    END
    $$
    """,
)

_APPENDS = (
    f"""
    CREATE FUNCTION signed_append(token text, steps jsonb, blobs bytea[], locks text[])
    RETURNS text LANGUAGE plpgsql {_AS_CHECKED} AS $$
    BEGIN
        RETURN append(token_tenant(token), steps, blobs, locks);
    END
    $$
    """,
    # Calls of one tenant often follow each other, with the same token.
    f"""
    CREATE FUNCTION signed_append_each(
        tokens text[], calls text[], blobs bytea[], counts bigint[]
    ) RETURNS SETOF text LANGUAGE plpgsql {_AS_CHECKED} AS $$
    DECLARE
        owners text[];
    BEGIN
        FOR n IN 1 .. cardinality(tokens) LOOP
            owners[n] := CASE
                WHEN n > 1 AND tokens[n] = tokens[n - 1] THEN owners[n - 1]
                ELSE token_tenant(tokens[n])
            END;
        END LOOP;
        RETURN QUERY SELECT append_each(owners, calls, blobs, counts);
    END
    $$
    """,
)

_SERVED = (
    "signed_tenant()",
    "require_token(boolean)",
    "signed_append(text, jsonb, bytea[], text[])",
    "signed_append_each(text[], text[], bytea[], bigint[])",
    *(read.signed_signature for read in TENANT_READS),
)

TOKENS = (
    *_TABLES,
    *_CHECKS,
    *_APPENDS,
    *(read.signed_statement(_AS_CHECKED) for read in TENANT_READS),
    # A function's owner must be able to create in its schema, at the moment it becomes that.
    f"GRANT USAGE, CREATE ON SCHEMA wopr TO {CHECKED}",
    *(
        statement
        for signature in _SERVED
        for statement in (
            f"ALTER FUNCTION {signature} OWNER TO {CHECKED}",
            f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC",
            f"GRANT EXECUTE ON FUNCTION {signature} TO {SERVICE}",
        )
    ),
    "REVOKE ALL ON FUNCTION token_tenant(text) FROM PUBLIC",
    f"GRANT EXECUTE ON FUNCTION token_tenant(text) TO {CHECKED}",
    # The functions that cross tenants run as a role of their own, and check the token first.
    "GRANT EXECUTE ON FUNCTION require_token(boolean) TO wopr_clockwork",
    f"REVOKE CREATE ON SCHEMA wopr FROM {CHECKED}",
)

# Tables and functions of migrations that know no tokens: the first ones, and later ones that use
# `tenant_table` and `host_functions`.
_UNGUARDED = """
p.pronamespace = to_regnamespace('wopr') AND starts_with(p.proname, 'host_')
AND p.prosecdef AND position('require_token' IN p.prosrc) = 0
"""
UNSIGNED_TABLES = """
SELECT tablename FROM pg_policies
WHERE schemaname = 'wopr' AND policyname = 'own_rows' AND roles = '{public}' ORDER BY 1
"""
# Columns whose content the planner must not collect statistics of. Every login can read estimates
# from `EXPLAIN`, and row-level security does not hide the statistics of the rows that it hides:
# comparisons of the estimates for many values give the values. No condition needs these columns'
# statistics. A change of the type to the same type deletes the statistics that are there. It is not
# possible for a column that a trigger names; the only one is the sealed secret of a webhook.
_TEXTS_OF_TENANTS = """
('run_tags', 'tag'), ('run_labels', 'label'), ('memory_tags', 'tag'), ('secrets', 'name'),
('api_keys', 'name')
"""
CONTENT_WITH_STATISTICS = f"""
SELECT format('ALTER TABLE %s ', c.oid::regclass) || string_agg(format(
    'ALTER COLUMN %1$I TYPE %2$s, ALTER COLUMN %1$I SET STATISTICS 0',
    a.attname, format_type(a.atttypid, a.atttypmod)
), ', ' ORDER BY a.attnum)
FROM pg_policies p
JOIN pg_class c ON c.relname = p.tablename AND c.relnamespace = to_regnamespace('wopr')
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE p.schemaname = 'wopr' AND p.policyname = 'own_rows' AND a.attstattarget IS DISTINCT FROM 0
    AND (a.atttypid IN ('bytea'::regtype, 'text'::regtype)
        OR (c.relname, a.attname) IN ({_TEXTS_OF_TENANTS}))
    AND NOT EXISTS (
        SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_trigger'::regclass
        AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
    )
GROUP BY c.oid ORDER BY c.oid
"""
IS_UNSIGNED = f"""
SELECT to_regprocedure('wopr.signed_tenant()') IS NOT NULL AND (
    EXISTS ({UNSIGNED_TABLES}) OR EXISTS (SELECT 1 FROM pg_proc p WHERE {_UNGUARDED})
    OR EXISTS ({CONTENT_WITH_STATISTICS})
)
"""
_BY_TOKEN = "tenant = (SELECT signed_tenant())"
_BY_NAME = "tenant = nullif(current_setting('wopr.tenant', true), '')"
# The role of the checked functions may do what the service may, row by row.
_SAME_RIGHTS = f"""
DO $$
DECLARE
    missing record;
BEGIN
    FOR missing IN
        SELECT c.oid::regclass AS name, c.relkind = 'S' AS is_sequence, privilege
        FROM pg_class c CROSS JOIN unnest('{{SELECT,INSERT,UPDATE,DELETE,USAGE}}'::text[]) privilege
        WHERE c.relnamespace = to_regnamespace('wopr') AND CASE c.relkind
            WHEN 'r' THEN privilege <> 'USAGE'
                AND has_table_privilege('{SERVICE}', c.oid, privilege)
                AND NOT has_table_privilege('{CHECKED}', c.oid, privilege)
            WHEN 'S' THEN privilege = 'USAGE'
                AND has_sequence_privilege('{SERVICE}', c.oid, privilege)
                AND NOT has_sequence_privilege('{CHECKED}', c.oid, privilege)
            ELSE false
        END
    LOOP
        EXECUTE format(
            CASE WHEN missing.is_sequence THEN 'GRANT %s ON SEQUENCE %s TO {CHECKED}'
            ELSE 'GRANT %s ON %s TO {CHECKED}' END, missing.privilege, missing.name
        );
    END LOOP;
END
$$
"""
# The functions that write the audit log are called in the transaction of a tenant.
_GUARD = f"""
DO $$
DECLARE
    unguarded oid;
    check_first text;
BEGIN
    FOR unguarded, check_first IN
        SELECT p.oid, format('AS $function$ SELECT require_token(%L); ',
            p.proname NOT IN ('host_audit_last', 'host_audit_append'))
        FROM pg_proc p WHERE {_UNGUARDED}
    LOOP
        EXECUTE replace(pg_get_functiondef(unguarded), 'AS $function$', check_first);
    END LOOP;
END
$$
"""

SIGN_FUNCTIONS = (_SAME_RIGHTS, _GUARD)


def sign_table(table: str) -> tuple[str, ...]:
    """Statements that show a table's rows by token to the service, and by name to its functions."""
    return (
        f"ALTER POLICY own_rows ON {table} TO {SERVICE} "
        f"USING ({_BY_TOKEN}) WITH CHECK ({_BY_TOKEN})",
        f"CREATE POLICY checked_rows ON {table} TO {CHECKED} "
        f"USING ({_BY_NAME}) WITH CHECK ({_BY_NAME})",
    )
