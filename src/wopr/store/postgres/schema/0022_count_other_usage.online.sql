-- Counts the rows from before the triggers. A separate migration, so that no table stays locked.

SELECT host_recount_stored_bytes();
