"""Ids of observed runs, each from a tenant and a producer's run id."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from wopr.protocol.errors import Conflict

# The prefix of the ids of all runs that another system executed.
OBSERVED_PREFIX: Final = "kahn-"
# The workflow id of these runs.
OBSERVED_WORKFLOW: Final = "kahn.observed"
_DIGITS: Final = 16


def observed_run_id(tenant: str, run_id: str) -> str:
    """Return the id of the observed run for a tenant's KAHN run.

    The id contains the producer's run id. With the digest, producers of two tenants with the same
    run id have different runs. The prefix distinguishes observed runs from runs of the host, whose
    ids are UUIDs.
    """
    digest = sha256(f"{tenant}\n{run_id}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{OBSERVED_PREFIX}{run_id}-{digest[:_DIGITS]}"


def producer_run_id(observed: str) -> str:
    """Return the producer's run id of an observed run."""
    return observed[len(OBSERVED_PREFIX) : -_DIGITS - 1]


def is_observed_run(run_id: str) -> bool:
    """Return whether a run is an observed run, from its id."""
    return run_id.startswith(OBSERVED_PREFIX)


def require_own_run(run_id: str) -> None:
    """Raise `Conflict` for an observed run: only its producer can change it."""
    if is_observed_run(run_id):
        raise Conflict(
            "this run was observed and is not executed by this host: it can be read and annotated, "
            "but not answered, paused, resumed, cancelled, forked or compared",
            source="kahn",
        )
