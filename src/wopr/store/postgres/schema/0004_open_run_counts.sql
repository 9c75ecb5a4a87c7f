-- Count only open runs by status; the index `runs_unfinished` contains exactly these. Each process
-- counts ended runs in its own counters.

CREATE OR REPLACE FUNCTION host_counts() RETURNS TABLE (status text, runs bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = wopr, pg_temp AS $$
    SELECT status, count(*) FROM runs WHERE ended_at IS NULL GROUP BY status
$$;
