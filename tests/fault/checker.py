"""Read a database that no host has open, and report every inconsistency.

`python -m tests.fault.checker <file or URL>` prints the problems, and fails when there are any.
"""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, LiteralString

import msgspec
import psycopg

from wopr.engine.fold.fold import fold_all
from wopr.engine.graph import Graph, compile_graph
from wopr.engine.snapshot import snapshot
from wopr.engine.state import RunIdentity, RunState, initial_state
from wopr.kahn.observed.run import ObservedRunState
from wopr.nodes.builtin import builtin_registry
from wopr.protocol.documents import JsonObject, Unset, encode
from wopr.protocol.events import RUN_TERMINAL_TYPES, RunEvent
from wopr.protocol.forks import Fork
from wopr.protocol.observed_ids import is_observed_run
from wopr.protocol.workflow import WorkflowDefinition
from wopr.store.port import SHARED, RunRow, StoredEvent
from wopr.store.tables.runs.rows import RUN_COLUMNS, run_row

NODE_ENDS = {"node.completed", "node.failed", "node.retried", "node.skipped", "node.cancelled"}


@dataclass(frozen=True)
class StoredRun:
    """A run's row and its log as bytes."""

    tenant: str
    row: RunRow
    log: tuple[StoredEvent, ...]

    @property
    def events(self) -> list[RunEvent]:
        return [msgspec.json.decode(event.body, type=RunEvent) for event in self.log]

    @property
    def fork(self) -> Fork | None:
        """Return the source of a forked run."""
        return None if self.row.fork is None else msgspec.json.decode(self.row.fork, type=Fork)

    @property
    def dispatched(self) -> list[str]:
        """Return the children that the run itself started.

        A replay, and the history of a branch, name the children of their source.
        """
        fork = self.fork
        if fork is not None and fork.mode == "replay":
            return []
        first = 0 if fork is None else fork.from_seq
        return [
            event.payload["childRunId"]
            for event in self.events
            if event.type == "node.dispatched" and event.sequence >= first
        ]


class Stored:
    """The runs of a database, read once."""

    def __init__(self, database: Path | str) -> None:
        with closing(_connected(database)) as self._connection:
            self.integrity = self._integrity()
            self.orphans = self._one(
                "SELECT count(*) FROM events WHERE run_id NOT IN (SELECT run_id FROM runs)"
            )
            self.runs = {run.row.run_id: run for run in self._runs()}
            self.answers = [
                msgspec.json.decode(body)
                for (body,) in self._connection.execute(
                    "SELECT body FROM answers WHERE status = 201"
                )
            ]
            self._definitions = {
                (tenant, name, version): body
                for tenant, name, version, body in self._connection.execute(
                    "SELECT tenant, workflow_id, version, body FROM workflows"
                )
            }
        self.graph = cache(self._graph)

    def _integrity(self) -> object:
        # A server checks its own pages with checksums.
        is_file = isinstance(self._connection, sqlite3.Connection)
        return self._one("PRAGMA integrity_check") if is_file else "ok"

    def _one(self, sql: LiteralString) -> object:
        found = self._connection.execute(sql).fetchone()
        assert found is not None
        return found[0]

    def _runs(self) -> Iterator[StoredRun]:
        logs: dict[str, list[StoredEvent]] = {}
        for run_id, sequence, kind, body in self._connection.execute(
            "SELECT run_id, sequence, type, body FROM events ORDER BY run_id, sequence"
        ):
            event = StoredEvent(sequence=sequence, type=kind, body=body)
            logs.setdefault(run_id, []).append(event)
        for tenant, *row in self._connection.execute(f"SELECT tenant, {RUN_COLUMNS} FROM runs r"):
            found = run_row(tuple(row))
            yield StoredRun(tenant, found, tuple(logs.get(found.run_id, ())))

    def _graph(self, tenant: str, workflow_id: str, version: str) -> Graph:
        body = next(
            self._definitions[owner, workflow_id, version]
            for owner in (tenant, SHARED)
            if (owner, workflow_id, version) in self._definitions
        )
        definition = msgspec.json.decode(body, type=WorkflowDefinition)
        return compile_graph(definition, builtin_registry(with_conformance=True).reentrant)

    def state(self, run: StoredRun) -> RunState:
        """Return the fold of the whole log of a run."""
        row = run.row
        identity = RunIdentity(
            run_id=row.run_id,
            tenant=run.tenant,
            workflow_id=row.workflow_id,
            workflow_version=row.workflow_version,
            parent_run_id=row.parent_run_id,
            parent_node_id=row.parent_node_id,
            root_run_id=row.root_run_id,
            fork=run.fork,
        )
        graph = self.graph(run.tenant, row.workflow_id, row.workflow_version)
        return fold_all(initial_state(identity, graph), run.events)


def _connected(database: Path | str) -> sqlite3.Connection | psycopg.Connection[Any]:
    if isinstance(database, str):
        # As the administrator, who sees the rows of every tenant.
        return psycopg.connect(database, autocommit=True, options="-c search_path=wopr")
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)


def problems(database: Path | str) -> list[str]:
    """Return every inconsistency of the database."""
    stored = Stored(database)
    found = [] if stored.integrity == "ok" else [f"the file is damaged: {stored.integrity}"]
    if stored.orphans:
        found.append(f"{stored.orphans} events belong to no run")
    for run in stored.runs.values():
        if is_observed_run(run.row.run_id):
            found += [f"run {run.row.run_id}: {text}" for text in _observed(run)]
            continue
        checks = (_log(run), _nodes(run), _row(stored, run), _family(run, stored.runs))
        found += [f"run {run.row.run_id}: {text}" for check in checks for text in check]
    return found + list(_answers(stored))


def _log(run: StoredRun) -> Iterator[str]:
    """Check the log: complete, ordered, ended once, and its bytes agree with its columns."""
    if [event.sequence for event in run.log] != list(range(len(run.log))):
        yield f"the sequences are {[event.sequence for event in run.log]}"
    types = [event.type for event in run.log]
    if types[:1] != ["run.started"] or types.count("run.started") > 1:
        yield f"it begins with {types[:1]} and has {types.count('run.started')} beginnings"
    ends = [sequence for sequence, kind in enumerate(types) if kind in RUN_TERMINAL_TYPES]
    if ends not in ([], [len(types) - 1]):
        yield f"it ends at {ends} of {len(types)}: {types}"
    known: set[str] = set()
    for stored, event in zip(run.log, run.events, strict=True):
        if (event.sequence, event.type) != (stored.sequence, stored.type):
            yield f"event {stored.sequence} says of itself {event.sequence} {event.type}"
        if event.run_id != run.row.run_id or event.event_id in known:
            yield f"event {event.sequence} is another run's or comes twice"
        if not isinstance(event.causation_id, Unset) and event.causation_id not in known:
            yield f"event {event.sequence} was caused by nothing that came before it"
        known.add(event.event_id)


def _nodes(run: StoredRun) -> Iterator[str]:
    """Check that every start of a node has one end, at the latest with the run."""
    running: set[str] = set()
    for event in run.events:
        name = str(event.node_id)
        if event.type == "node.started":
            if name in running:
                yield f"{name} started at {event.sequence} before its last start had ended"
            running.add(name)
        elif event.type in NODE_ENDS:
            running.discard(name)
    if run.row.ended_at is not None and running:
        yield f"ended with {sorted(running)} still running"


def _row(stored: Stored, run: StoredRun) -> Iterator[str]:
    """Check that the row agrees with the fold of the log."""
    row, state = run.row, stored.state(run)
    folded = (
        state.status,
        state.next_sequence - 1,
        state.ended_at or None,
        state.started_at,
        state.tags,
    )
    kept = (row.status, row.last_sequence, row.ended_at, row.created_at, row.tags)
    if kept != folded:
        yield f"the row has {kept}, the log {folded}"
    if state.is_terminal and (row.wake_at, row.pending_command, row.sealed) != (None, None, None):
        yield "it has ended and still has a wake-up, a pending command or something sealed"
    if not state.is_terminal and row.wake_at is None:
        yield "it has not ended and nothing will wake it"
    rebuilt = encode(snapshot(state)) if state.is_terminal and not state.children else None
    if row.snapshot != rebuilt:
        yield f"the snapshot is {row.snapshot!r}, from the log {rebuilt!r}"


def _observed(run: StoredRun) -> Iterator[str]:
    """Check that the row of an observed run agrees with its log, and that nothing controls it."""
    row, view = run.row, ObservedRunState(run.tenant, run.row.run_id)
    if [event.sequence for event in run.log] != list(range(len(run.log))):
        yield f"the sequences are {[event.sequence for event in run.log]}"
    for event in run.events:
        view.fold(event)
    if (row.status, row.last_sequence) != (view.status, view.last_sequence):
        yield f"the row has {row.status} at {row.last_sequence}, the log {view.status}"
    if row.snapshot != encode(view.snapshot()):
        yield f"the snapshot is {row.snapshot!r}, from the log {encode(view.snapshot())!r}"
    if (row.wake_at, row.pending_command, row.sealed) != (None, None, None):
        yield "it was observed and has a wake-up, a pending command or something sealed"


def _family(run: StoredRun, runs: Mapping[str, StoredRun]) -> Iterator[str]:
    """Check that children and parents refer to each other."""
    for child_id, times in Counter(run.dispatched).items():
        child = runs.get(child_id)
        if times != 1 or child is None or child.row.parent_run_id != run.row.run_id:
            yield f"it dispatched {child_id} {times} times, which is not its child"
    if run.row.parent_run_id is None:
        return
    parent = runs.get(run.row.parent_run_id)
    if parent is None or parent.tenant != run.tenant or run.row.run_id not in parent.dispatched:
        yield f"its parent {run.row.parent_run_id} does not know it"


def _answers(stored: Stored) -> Iterator[str]:
    """Check that a run named in a stored response exists."""
    for answer in stored.answers:
        document: JsonObject = answer
        if "runId" in document and document["runId"] not in stored.runs:
            yield f"run {document['runId']} was acknowledged and is not there"


def main(database: str) -> int:
    """Print the problems of a database, or that there are none."""
    found = problems(database if "://" in database else Path(database))
    print("\n".join(found) or "no problems found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
