"""Totals of KAHN runs, and how they change with new lines.

A rolling span has the totals of the runs since its stored start. Retention moves this start
forward, so a run enters and leaves a span once. A reader corrects the totals for the time between
the stored start and the start that it needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from wopr.store.port.fleet import ALL, AgentRun, CheckpointResult, NewLines, Since
from wopr.store.tables.dialect import SMALLEST_INTEGER, Variants, bulk_insert, variants
from wopr.store.tables.statements import Operation, execute_bulk, query

_OUTCOMES: Final = ("converged", "partial", "escaped", "aborted")
_RESULTS: Final = ("pass", "fail", "warn")
# A stretch is a group of adjacent bins: 2 to the power of this many.
STRETCH_BITS: Final = 6
# The start of the span `ALL`, which has no stored start.
NO_START: Final = SMALLEST_INTEGER

Key: TypeAlias = tuple[str | int, ...]
Sums = defaultdict[Key, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsTable:
    """A table of totals: its key without the tenant, and the columns that are summed."""

    name: str
    keys: tuple[str, ...]
    sums: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns but the tenant."""
        return (*self.keys, *self.sums)

    @property
    def on_conflict(self) -> str:
        """Return the clause that adds to an existing row `t`."""
        changes = ", ".join(f"{name} = t.{name} + excluded.{name}" for name in self.sums)
        return f"ON CONFLICT (tenant, {', '.join(self.keys)}) DO UPDATE SET {changes}"

    @property
    def is_empty(self) -> str:
        """Return the condition that all sums of a row `t` are 0."""
        return " AND ".join(f"t.{name} = 0" for name in self.sums)


AGENTS: Final = TotalsTable(
    name="fleet_agents",
    keys=("span", "agent_id"),
    sums=("runs", *_OUTCOMES, "scored", "score_units"),
)
STRETCHES: Final = TotalsTable(
    name="fleet_stretches", keys=("span", "agent_id", "stretch"), sums=("runs",)
)
BINS: Final = TotalsTable(
    name="fleet_bins", keys=("span", "agent_id", "duration_bin"), sums=("runs",)
)
CHECKPOINTS: Final = TotalsTable(
    name="fleet_checkpoints", keys=("span", "checkpoint_id"), sums=("passed", "failed", "warned")
)
TOTALS: Final = (AGENTS, STRETCHES, BINS, CHECKPOINTS)


_NUMBERS: Final = ("stretch", "duration_bin")


def _types(table: TotalsTable) -> str:
    return " ".join(("text", *("bigint" if key in _NUMBERS else "text" for key in table.keys)))


def _add_rows(table: TotalsTable) -> Variants:
    columns = ", ".join(("tenant", *table.columns))
    types = f"{_types(table)} {'bigint ' * len(table.sums)}"
    return bulk_insert(f"{table.name} AS t ({columns})", types, table.on_conflict)


def _delete_empty(table: TotalsTable) -> Variants:
    keys = ("tenant", *table.keys)
    arrays = ", ".join(f"?::{each}[]" for each in _types(table).split())
    given = " AND ".join(f"t.{key} = ?" for key in keys)
    same = " AND ".join(f"t.{key} = given.{key}" for key in keys)
    return Variants(
        sqlite=f"DELETE FROM {table.name} AS t WHERE {given} AND {table.is_empty}",
        postgres=f"DELETE FROM {table.name} t USING unnest({arrays}) AS given ({', '.join(keys)}) "
        f"WHERE {same} AND {table.is_empty}",
    )


_ADD_ROWS: Final = tuple(_add_rows(table) for table in TOTALS)
_DELETE_EMPTY: Final = tuple(_delete_empty(table) for table in TOTALS)
SPAN_STARTS: Final = "SELECT span, since FROM fleet_spans WHERE tenant = ?"
# Writers share the lock. Retention waits for it before it moves a start.
_LOCK_SPAN_STARTS: Final = variants(lambda dialect: f"{SPAN_STARTS}{dialect.lock('FOR SHARE')}")
_INSERT_SPAN_STARTS: Final = bulk_insert(
    "fleet_spans (tenant, span, since)", "text text bigint", "ON CONFLICT DO NOTHING"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The rows to add to one table, and the keys of rows that may then be empty."""

    added: list[Key]
    decreased: list[Key]


class TotalsChange:
    """Changes of one tenant's totals, collected to be written together."""

    def __init__(self, starts: Mapping[str, int]) -> None:
        self._starts = starts
        self._sums: dict[str, Sums] = {table.name: _sums(len(table.sums)) for table in TOTALS}

    def add_lines(self, added: NewLines) -> None:
        """Replace the counts of a run before new lines by its counts after them."""
        for before, after in added.agents:
            if before is not None:
                self.add_agent(before, -1)
            self.add_agent(after, 1)
        for audit in added.audits:
            self.add_audit(audit, 1)

    def add_agent(self, agent: AgentRun, factor: int) -> None:
        """Add an agent's run to every span that contains it, or subtract it with a factor of -1."""
        values = agent_counts(agent.outcome, agent.score_units)
        duration_bin = agent.duration_bin
        for span, since in self._starts.items():
            if agent.last_event < since:
                continue
            add(self._sums[AGENTS.name][span, agent.agent_id], values, factor)
            if duration_bin is not None:
                stretch = duration_bin >> STRETCH_BITS
                self._sums[STRETCHES.name][span, agent.agent_id, stretch][0] += factor
                self._sums[BINS.name][span, agent.agent_id, duration_bin][0] += factor

    def add_audit(self, audit: CheckpointResult, factor: int) -> None:
        """Add an audit to every span that contains it, or subtract it with a factor of -1."""
        values = audit_counts(audit.result)
        for span, since in self._starts.items():
            if audit.at >= since:
                add(self._sums[CHECKPOINTS.name][span, audit.checkpoint_id], values, factor)

    def changes(self) -> Iterator[Changes]:
        """Return the changes of each of `TOTALS`, always in the same order to avoid deadlocks."""
        for table in TOTALS:
            sums = self._sums[table.name]
            changed = sorted((key, values) for key, values in sums.items() if any(values))
            yield Changes(
                added=[(*key, *values) for key, values in changed],
                decreased=[key for key, values in changed if min(values) < 0],
            )


def with_span_of_all(starts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add the start of the span `ALL` to the stored starts of a tenant."""
    return {ALL: NO_START, **dict(starts)}


def agent_counts(outcome: str | None, score_units: int | None) -> tuple[int, ...]:
    """Return the increments of the sums of `AGENTS` for one run of an agent."""
    scored = (0, 0) if score_units is None else (1, score_units)
    return (1, *(int(outcome == each) for each in _OUTCOMES), *scored)


def audit_counts(result: str) -> tuple[int, ...]:
    """Return the increments of the sums of `CHECKPOINTS` for one audit."""
    return tuple(int(result == each) for each in _RESULTS)


def add(sums: list[int], values: Sequence[int], factor: int) -> None:
    """Add the values, multiplied by `factor`, to the sums."""
    for index, value in enumerate(values):
        sums[index] += factor * value


def _sums(width: int) -> Sums:
    return defaultdict(lambda: [0] * width)


def write_totals(tenant: str, change: TotalsChange) -> Operation[None]:
    """Write collected changes, and delete the rows that are then empty."""
    for changes, add_rows, delete_empty in zip(
        change.changes(), _ADD_ROWS, _DELETE_EMPTY, strict=True
    ):
        yield execute_bulk(add_rows, [(tenant, *row) for row in changes.added])
        yield execute_bulk(delete_empty, [(tenant, *key) for key in changes.decreased])


def lock_span_starts(tenant: str) -> Operation[dict[str, int]]:
    """Lock the stored starts of a tenant's spans until the transaction ends, and return them."""
    rows = yield query(_LOCK_SPAN_STARTS, (tenant,))
    return with_span_of_all((span, since) for span, since in rows)


def begin_spans(tenant: str, since: Since) -> Operation[dict[str, int]]:
    """Lock and return the start of each span; a span without a start begins at `since`."""
    starts = yield from lock_span_starts(tenant)
    missing = sorted(since.keys() - starts.keys())
    if not missing:
        return starts
    yield execute_bulk(_INSERT_SPAN_STARTS, [(tenant, span, since[span]) for span in missing])
    # Another process may have inserted them meanwhile, with other starts.
    return (yield from lock_span_starts(tenant))
