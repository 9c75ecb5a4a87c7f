-- Not a migration. It runs after the migrations if a check of tokens is missing.

-- wopr_tenant has the rights of the service, for the rows of a tenant.
DO $$
DECLARE
    missing record;
BEGIN
    FOR missing IN
        SELECT c.oid::regclass AS name, c.relkind = 'S' AS is_sequence, privilege
        FROM pg_class c CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE,USAGE}'::text[]) privilege
        WHERE c.relnamespace = to_regnamespace('wopr') AND CASE c.relkind
            WHEN 'r' THEN privilege <> 'USAGE'
                AND has_table_privilege('wopr_service', c.oid, privilege)
                AND NOT has_table_privilege('wopr_tenant', c.oid, privilege)
            WHEN 'S' THEN privilege = 'USAGE'
                AND has_sequence_privilege('wopr_service', c.oid, privilege)
                AND NOT has_sequence_privilege('wopr_tenant', c.oid, privilege)
            ELSE false
        END
    LOOP
        EXECUTE format(
            CASE WHEN missing.is_sequence THEN 'GRANT %s ON SEQUENCE %s TO wopr_tenant'
            ELSE 'GRANT %s ON %s TO wopr_tenant' END, missing.privilege, missing.name
        );
    END LOOP;
END
$$;

-- Each function that crosses tenants checks the token first. The functions that write the audit log
-- accept a token of a tenant, because they run in the transaction of a tenant.
DO $$
DECLARE
    unguarded oid;
    check_first text;
BEGIN
    FOR unguarded, check_first IN
        SELECT p.oid, format('AS $function$ SELECT require_token(%L); ',
            p.proname NOT IN ('host_audit_last', 'host_audit_append'))
        FROM pg_proc p
        WHERE p.pronamespace = to_regnamespace('wopr') AND starts_with(p.proname, 'host_')
            AND p.prosecdef AND position('require_token' IN p.prosrc) = 0
    LOOP
        EXECUTE replace(pg_get_functiondef(unguarded), 'AS $function$', check_first);
    END LOOP;
END
$$;
