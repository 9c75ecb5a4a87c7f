-- Row-level security by a signed token instead of a session variable, which every login can set.
--
-- The service sees the rows of the tenant whose token is in `wopr.token`; `signed_tenant` checks
-- it. The functions of the hot path check their token once and then run as wopr_tenant, whose
-- policies use the plain `wopr.tenant`: only these functions run as that role, and each sets the
-- variable itself. The functions that cross tenants need a token of the host. `migrations.py`
-- adds the checks to the tables and functions of all migrations.
--
-- An attacker who has the login of the service can read all of this in the catalogue. A key is only
-- ever a column of a query, never the value of a variable: `debug_print_plan` would print that.

CREATE TABLE token_keys (
    key_id     text NOT NULL PRIMARY KEY,
    inner_key  bytea NOT NULL,
    outer_key  bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Processes of an older version, which have no tokens, may still work for one hour.
CREATE TABLE token_grace (until timestamptz NOT NULL);

INSERT INTO token_grace SELECT now() + interval '1 hour' WHERE EXISTS (
    SELECT 1 FROM processes
    WHERE beat_at >= clock_timestamp() - interval '6.0 seconds'
);

GRANT SELECT ON token_keys, token_grace TO wopr_tenant;

-- A token is 64 characters of signature, 8 of the key id, 10 of the expiry, one of the kind (t: a
-- tenant, h: the host), then the tenant. Each function contains the check itself: a call of another
-- function would cost a tenth of a read.
CREATE FUNCTION token_tenant(token text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    owner text;
BEGIN
    SELECT substr(token, 84) INTO owner
    FROM token_keys k WHERE k.key_id = substr(token, 65, 8) AND sha256(k.outer_key || sha256(
        k.inner_key || convert_to(pg_backend_pid() || ':' || substr(token, 65), 'UTF8')
    )) = decode(left(token, 64), 'hex')
        AND substr(token, 73, 10)::float8 >= date_part('epoch', now())
        AND substr(token, 83, 1) = 't';
    IF owner IS NULL THEN
        RAISE EXCEPTION 'the token is not valid here' USING ERRCODE = 'WO010';
    END IF;
    RETURN owner;
END
$$;

CREATE FUNCTION signed_tenant() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
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
    SELECT substr(token, 84) INTO owner
    FROM token_keys k WHERE k.key_id = substr(token, 65, 8) AND sha256(k.outer_key || sha256(
        k.inner_key || convert_to(pg_backend_pid() || ':' || substr(token, 65), 'UTF8')
    )) = decode(left(token, 64), 'hex')
        AND substr(token, 73, 10)::float8 >= date_part('epoch', now())
        AND substr(token, 83, 1) = 't';
    IF owner IS NULL THEN
        RAISE EXCEPTION 'the token is not valid here' USING ERRCODE = 'WO010';
    END IF;
    RETURN owner;
END
$$;

-- The audit log is written in the transaction of the tenant that an entry is about, so a token of a
-- tenant is enough there.
CREATE FUNCTION require_token(is_host boolean) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
DECLARE
    token text := nullif(current_setting('wopr.token', true), '');
BEGIN
    IF token IS NULL AND EXISTS (SELECT 1 FROM token_grace WHERE now() < until) THEN
        RETURN;
    END IF;
    PERFORM 1
    FROM token_keys k WHERE k.key_id = substr(token, 65, 8) AND sha256(k.outer_key || sha256(
        k.inner_key || convert_to(pg_backend_pid() || ':' || substr(token, 65), 'UTF8')
    )) = decode(left(token, 64), 'hex')
        AND substr(token, 73, 10)::float8 >= date_part('epoch', now())
        AND (substr(token, 83, 1) = 'h' OR NOT is_host);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this needs a token of the host' USING ERRCODE = 'WO010';
    END IF;
END
$$;

CREATE FUNCTION signed_append(token text, steps jsonb, blobs bytea[], locks text[])
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
BEGIN
    RETURN append(token_tenant(token), steps, blobs, locks);
END
$$;

-- Calls of one tenant often follow each other, with the same token.
CREATE FUNCTION signed_append_each(
    tokens text[], calls text[], blobs bytea[], counts bigint[]
) RETURNS SETOF text LANGUAGE plpgsql SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
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
$$;

CREATE FUNCTION signed_run(text, text) RETURNS SETOF runs
LANGUAGE plpgsql SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
DECLARE
    owner text := token_tenant($1);
BEGIN
    PERFORM set_config('wopr.tenant', owner, true);
    RETURN QUERY SELECT * FROM runs r WHERE r.run_id = $2 AND r.tenant = owner;
END
$$;

CREATE FUNCTION signed_events(text, text, bigint, bigint) RETURNS SETOF events
LANGUAGE plpgsql SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
DECLARE
    owner text := token_tenant($1);
BEGIN
    PERFORM set_config('wopr.tenant', owner, true);
    RETURN QUERY
        SELECT * FROM events e WHERE e.run_id = $2 AND e.tenant = owner AND e.sequence >= $3
        ORDER BY e.sequence LIMIT $4;
END
$$;

CREATE FUNCTION signed_answer(text, bytea) RETURNS SETOF answers
LANGUAGE plpgsql SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
DECLARE
    owner text := token_tenant($1);
BEGIN
    PERFORM set_config('wopr.tenant', owner, true);
    RETURN QUERY SELECT * FROM answers a WHERE a.tenant = owner AND a.key_hash = $2;
END
$$;

CREATE FUNCTION signed_workflow(text, text, text) RETURNS SETOF workflows
LANGUAGE plpgsql SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
DECLARE
    owner text := token_tenant($1);
BEGIN
    PERFORM set_config('wopr.tenant', owner, true);
    RETURN QUERY
        SELECT * FROM workflows w
        WHERE w.tenant = owner AND w.workflow_id = $2 AND w.version = $3;
END
$$;

CREATE FUNCTION signed_newest_workflow(text, text) RETURNS SETOF workflows
LANGUAGE plpgsql SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
DECLARE
    owner text := token_tenant($1);
BEGIN
    PERFORM set_config('wopr.tenant', owner, true);
    RETURN QUERY
        SELECT * FROM workflows w WHERE w.tenant = owner AND w.workflow_id = $2
        ORDER BY w.registered_at DESC, w.place DESC LIMIT 1;
END
$$;

CREATE FUNCTION signed_logs(text, text[], bigint)
RETURNS TABLE (run runs, types text[], bodies bytea[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = wopr, pg_temp SET enable_seqscan = off AS $$
DECLARE
    owner text := token_tenant($1);
BEGIN
    PERFORM set_config('wopr.tenant', owner, true);
    RETURN QUERY
        SELECT r, l.types, l.bodies FROM runs r CROSS JOIN LATERAL (
            SELECT array_agg(e.type::text ORDER BY e.sequence) AS types,
                array_agg(e.body ORDER BY e.sequence) AS bodies
            FROM events e WHERE e.run_id = r.run_id AND e.tenant = owner AND e.sequence < $3
        ) l WHERE r.run_id = ANY ($2) AND r.tenant = owner;
END
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_tenant;
ALTER FUNCTION signed_tenant OWNER TO wopr_tenant;
ALTER FUNCTION require_token OWNER TO wopr_tenant;
ALTER FUNCTION signed_append OWNER TO wopr_tenant;
ALTER FUNCTION signed_append_each OWNER TO wopr_tenant;
ALTER FUNCTION signed_run OWNER TO wopr_tenant;
ALTER FUNCTION signed_events OWNER TO wopr_tenant;
ALTER FUNCTION signed_answer OWNER TO wopr_tenant;
ALTER FUNCTION signed_workflow OWNER TO wopr_tenant;
ALTER FUNCTION signed_newest_workflow OWNER TO wopr_tenant;
ALTER FUNCTION signed_logs OWNER TO wopr_tenant;
REVOKE CREATE ON SCHEMA wopr FROM wopr_tenant;
REVOKE ALL ON FUNCTION
    signed_tenant, require_token, signed_append, signed_append_each, signed_run,
    signed_events, signed_answer, signed_workflow, signed_newest_workflow, signed_logs
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    signed_tenant, require_token, signed_append, signed_append_each, signed_run,
    signed_events, signed_answer, signed_workflow, signed_newest_workflow, signed_logs
TO wopr_service;
REVOKE ALL ON FUNCTION token_tenant FROM PUBLIC;
GRANT EXECUTE ON FUNCTION token_tenant TO wopr_tenant;
-- The functions that cross tenants run as wopr_clockwork, and check the token first.
GRANT EXECUTE ON FUNCTION require_token TO wopr_clockwork;
