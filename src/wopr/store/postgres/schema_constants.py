"""Values that both the SQL files of the schema and the Python code contain.

A released migration is never edited. A change of one of these values needs a new migration that
replaces the functions with the old value.
"""

from __future__ import annotations

from typing import Final

# Roles. No login can use them directly.
SERVICE_ROLE: Final = "wopr_service"
# Owns the functions that cross tenants.
HOST_ROLE: Final = "wopr_clockwork"
# Owns the functions that check a token of a tenant.
TENANT_ROLE: Final = "wopr_tenant"

# The SQLSTATE codes that the functions raise. `faults` maps them to exceptions.
SEQUENCE_TAKEN: Final = "WO001"
IDEMPOTENCY_KEY_USED: Final = "WO002"
LEASE_LOST: Final = "WO003"
TOO_MANY_ACTIVE: Final = "WO004"
TOO_MANY_DESCENDANTS: Final = "WO005"
TOKEN_REFUSED: Final = "WO010"

# The Procrastinate queue and task of wake-ups.
QUEUE: Final = "runs"
TASK: Final = "wopr.advance"

# A run that is due later than this has no job yet.
HORIZON_MS: Final = 20_000
# A process without a heartbeat for this time counts as dead.
DEAD_AFTER_SECONDS: Final = 6.0
# The time for which a run that a process has taken is not due for other processes.
TAKEN_MS: Final = 10_000
# A due run without a holder gets a job after this time.
OVERDUE_MS: Final = 2000
# A run is quarantined after this many crashes of its processes.
MAX_CRASHES: Final = 3
