"""The fleet's runs of some ids, by one statement however many they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from wopr.store.port.fleet import FleetRun
from wopr.store.sql.fleet_rows import RUN_COLUMNS, fleet_run

# `known` are the ids asked for, as one JSON array.
_RUNS = f"""
SELECT {RUN_COLUMNS} FROM json_each(?) AS known
CROSS JOIN fleet_runs ON tenant = ? AND run_id = known.value
"""


def runs_of(
    connection: sqlite3.Connection, tenant: str, run_ids: Iterable[str]
) -> dict[str, FleetRun]:
    """The tenant's runs of these ids, in the order of the ids."""
    found = connection.execute(_RUNS, (as_array(run_ids), tenant))
    return {run.run_id: run for run in map(fleet_run, found)}


def as_array(run_ids: Iterable[str]) -> str:
    """Ids as one parameter, for `json_each`."""
    return msgspec.json.encode(list(run_ids)).decode()
