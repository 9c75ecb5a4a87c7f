-- The ids of the keys that encrypt stored content. Only a function of the host adds an id,
-- because hosts do not start if they do not have a key of this table.

CREATE TABLE encryption_keys (
    key_id   word NOT NULL PRIMARY KEY,
    added_at bigint NOT NULL
);

GRANT SELECT ON encryption_keys TO wopr_service;
GRANT SELECT, INSERT ON encryption_keys TO wopr_clockwork;

CREATE FUNCTION host_add_encryption_key(text, bigint) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    INSERT INTO encryption_keys (key_id, added_at) VALUES ($1, $2)
    ON CONFLICT (key_id) DO NOTHING
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_add_encryption_key OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION host_add_encryption_key FROM PUBLIC;
GRANT EXECUTE ON FUNCTION host_add_encryption_key TO wopr_service;

-- Events, idempotency records and annotations are written once. Only re-encryption replaces their
-- bodies, with the same content under another key. It runs as the owner, in the role wopr_tenant.
GRANT UPDATE (body) ON events, answers, annotations TO wopr_tenant;
GRANT UPDATE (content) ON memories TO wopr_tenant;
