-- Positions of audit sinks, and checkpoints. Only functions of the host write them. Otherwise
-- a login could make a sink skip entries, or store a false checkpoint.

CREATE TABLE audit_sinks (
    sink       word NOT NULL PRIMARY KEY,
    sequence   bigint NOT NULL,
    checkpoint bigint NOT NULL
);

GRANT SELECT, INSERT, UPDATE ON audit_sinks TO wopr_clockwork;
REVOKE INSERT ON audit_checkpoints FROM wopr_service;
GRANT SELECT, INSERT ON audit_checkpoints TO wopr_clockwork;

CREATE FUNCTION host_sink_position(text) RETURNS TABLE (sequence bigint, checkpoint bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT sequence, checkpoint FROM audit_sinks WHERE sink = $1
$$;

CREATE FUNCTION host_put_sink_position(text, bigint, bigint) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    INSERT INTO audit_sinks AS held (sink, sequence, checkpoint)
    VALUES ($1, $2, $3)
    ON CONFLICT (sink) DO UPDATE SET
        sequence = greatest(held.sequence, excluded.sequence),
        checkpoint = greatest(held.checkpoint, excluded.checkpoint)
$$;

CREATE FUNCTION host_put_checkpoint(bigint, text, text, text, bytea) RETURNS SETOF integer
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    INSERT INTO audit_checkpoints
        (at_sequence, merkle_root, signature, public_key, peaks)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (at_sequence) DO NOTHING RETURNING 1
$$;

-- A new owner of a function must have the right to create in its schema.
GRANT USAGE, CREATE ON SCHEMA wopr TO wopr_clockwork;
ALTER FUNCTION host_sink_position OWNER TO wopr_clockwork;
ALTER FUNCTION host_put_sink_position OWNER TO wopr_clockwork;
ALTER FUNCTION host_put_checkpoint OWNER TO wopr_clockwork;
REVOKE CREATE ON SCHEMA wopr FROM wopr_clockwork;
REVOKE ALL ON FUNCTION
    host_sink_position, host_put_sink_position, host_put_checkpoint
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    host_sink_position, host_put_sink_position, host_put_checkpoint
TO wopr_service;
