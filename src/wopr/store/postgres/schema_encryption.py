"""The ids of the keys that stored content is encrypted with, and the rights to re-encrypt it."""

from __future__ import annotations

from wopr.store.postgres.schema_host import SERVICE
from wopr.store.postgres.schema_tokens import CHECKED

# Events, answers and annotations are written once. Only an owner, as the role of the checked
# functions, replaces their bodies, with the same content under another key.
ENCRYPTION = (
    """
    CREATE TABLE encryption_keys (
        key_id   word NOT NULL PRIMARY KEY,
        added_at bigint NOT NULL
    )
    """,
    f"GRANT SELECT, INSERT ON encryption_keys TO {SERVICE}",
    f"GRANT UPDATE (body) ON events, answers, annotations TO {CHECKED}",
    f"GRANT UPDATE (content) ON memories TO {CHECKED}",
)
