"""The ids of the keys that stored content is encrypted with, and the rights to re-encrypt it."""

from __future__ import annotations

from wopr.store.postgres.schema_host import CLOCKWORK, SERVICE, HostFunction
from wopr.store.postgres.schema_tokens import CHECKED
from wopr.store.postgres.security import host_functions

# Only a host adds a key id: an id of a key that no host has stops every host at its next start.
# Events, answers and annotations are written once. Only an owner, as the role of the checked
# functions, replaces their bodies, with the same content under another key.
ENCRYPTION = (
    """
    CREATE TABLE encryption_keys (
        key_id   word NOT NULL PRIMARY KEY,
        added_at bigint NOT NULL
    )
    """,
    f"GRANT SELECT ON encryption_keys TO {SERVICE}",
    f"GRANT SELECT, INSERT ON encryption_keys TO {CLOCKWORK}",
    *host_functions(
        (
            HostFunction(
                name="host_add_encryption_key",
                takes=("text", "bigint"),
                gives="void",
                changes=True,
                body="""
                    INSERT INTO encryption_keys (key_id, added_at) VALUES ($1, $2)
                    ON CONFLICT (key_id) DO NOTHING
                """,
            ),
        )
    ),
    f"GRANT UPDATE (body) ON events, answers, annotations TO {CHECKED}",
    f"GRANT UPDATE (content) ON memories TO {CHECKED}",
)
