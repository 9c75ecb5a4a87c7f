"""How a run that was pushed in is called here: one name for each tenant and producer's run id."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from wopr.protocol.errors import Conflict
from wopr.store.port.runs import OBSERVED_PREFIX

_DIGITS: Final = 16


def observed_run_id(tenant: str, run_id: str) -> str:
    """Name the observed run of a tenant's KAHN run.

    The id stays readable. The digest makes it the tenant's own: two tenants whose producers use
    the same name have two runs. The prefix keeps both apart from every run of the host, whose ids
    are UUIDs and have no such letters.
    """
    digest = sha256(f"{tenant}\n{run_id}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{OBSERVED_PREFIX}{run_id}-{digest[:_DIGITS]}"


def producer_run_id(observed: str) -> str:
    """The producer's id of the run that an observed run shows."""
    return observed[len(OBSERVED_PREFIX) : -_DIGITS - 1]


def is_observed_run(run_id: str) -> bool:
    """Tell by its id whether a run was observed and is not this host's to move."""
    return run_id.startswith(OBSERVED_PREFIX)


def require_own(run_id: str) -> None:
    """Raise `Conflict` for an observed run: its producer moves it, nobody here can."""
    if is_observed_run(run_id):
        raise Conflict(
            "this run was observed and is not run here: it can be read and annotated, but not "
            "answered, paused, resumed, cancelled, forked or compared",
            source="kahn",
        )
