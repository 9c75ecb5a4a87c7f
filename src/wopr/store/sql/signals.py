"""Signals of runs: the statements that keep, count and delete them, the same for every adapter.

A function returns statements with their parameters, spelled with `?`; the adapter runs them in its
own transaction. The number of runs by signal is kept by triggers on `runs` and `run_agents`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

from wopr.store.port.feedback import (
    CORRECTED,
    FLAGGED,
    INTERVENED,
    AnnotationRow,
    FeedbackCount,
    FeedbackFilter,
    GroupBy,
    SignalCount,
)
from wopr.store.sql.asking import Asking, Question
from wopr.store.sql.counting import stretches
from wopr.store.sql.dialect import Dialect, Parameter, Row
from wopr.store.sql.side_rows import counted_numbers

Statement: TypeAlias = tuple[str, tuple[Parameter, ...]]

# An index entry has a limited size, so a longer label is found by its digest.
LONGEST_LABEL = 200

_MARK_RUN = """
UPDATE runs SET signals = signals | ?
WHERE run_id = ? AND tenant = ? AND signals & ? <> ?
"""
# An agent that joins a run after a person intervened counts as one of that run.
_ADD_AGENT = f"""
INSERT INTO run_agents (tenant, run_id, agent_id, workflow_id, created_at, signals)
SELECT tenant, run_id, ?, workflow_id, created_at, signals & {INTERVENED}
FROM runs WHERE run_id = ? AND tenant = ?
ON CONFLICT (tenant, run_id, agent_id) DO NOTHING
"""
_MARK_AGENT = """
UPDATE run_agents SET signals = signals | ?
WHERE tenant = ? AND run_id = ? AND agent_id = ? AND signals & ? <> ?
"""
_MARK_AGENTS = """
UPDATE run_agents SET signals = signals | ?
WHERE tenant = ? AND run_id = ? AND signals & ? <> ?
"""
_PUT_LABEL = """
INSERT INTO run_labels (tenant, label, created_at, run_id)
SELECT tenant, ?, created_at, run_id FROM runs WHERE run_id = ? AND tenant = ?
ON CONFLICT (tenant, label, created_at, run_id) DO NOTHING
"""
_COUNT = """
INSERT INTO run_feedback AS f (
    tenant, run_id, ratings, rating_sum, corrections, labels, flags
) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, run_id) DO UPDATE SET
    ratings = f.ratings + excluded.ratings,
    rating_sum = f.rating_sum + excluded.rating_sum,
    corrections = f.corrections + excluded.corrections,
    labels = f.labels + excluded.labels,
    flags = f.flags + excluded.flags
"""
_FORGET = (
    "DELETE FROM run_agents WHERE tenant = ? AND run_id = ?",
    "DELETE FROM run_labels WHERE tenant = ? AND run_id = ?",
    "DELETE FROM run_feedback WHERE tenant = ? AND run_id = ?",
)
_OF_RUN = """
SELECT run_id, ratings, rating_sum, corrections, labels, flags FROM run_feedback
WHERE tenant = ? AND run_id = ?
"""
_GROUPS: dict[GroupBy, tuple[str, ...]] = {
    "workflow": ("workflow_id",),
    "agent": ("agent_id",),
    "time": ("bucket",),
    "nothing": (),
}
_SUMS = ", ".join(
    (
        "CAST(sum(runs) AS bigint)",
        *(
            f"CAST(sum(CASE WHEN signals & {bit} <> 0 THEN runs ELSE 0 END) AS bigint)"
            for bit in (FLAGGED, CORRECTED, INTERVENED)
        ),
    )
)


def label_key(label: str) -> str:
    """What a label is found by."""
    if len(label) <= LONGEST_LABEL:
        return label
    return f"sha256:{hashlib.sha256(label.encode('utf-8', 'surrogatepass')).hexdigest()}"


def record_annotation(tenant: str, row: AnnotationRow) -> list[Statement]:
    """Statements that keep what an annotation says of its run. A check says nothing of it."""
    if row.source == "audit":
        return []
    bits = row.signals
    statements: list[Statement] = [(_COUNT, (tenant, row.run_id, *counted_numbers(row, 1)))]
    if bits:
        statements.append((_MARK_RUN, (bits, row.run_id, tenant, bits, bits)))
    if row.agent_id:
        statements += record_agents(tenant, row.run_id, [row.agent_id])
    if row.agent_id and bits:
        statements.append(
            (_MARK_AGENT, (bits, tenant, row.run_id, row.agent_id, bits, bits)),
        )
    if row.label is not None:
        statements.append((_PUT_LABEL, (label_key(row.label), row.run_id, tenant)))
    return statements


def record_agents(tenant: str, run_id: str, agents: Sequence[str]) -> list[Statement]:
    """Statements that keep which agents took part in a run."""
    return [(_ADD_AGENT, (agent, run_id, tenant)) for agent in agents]


def record_intervention(tenant: str, run_id: str) -> list[Statement]:
    """Statements that keep that a person answered in a run."""
    bits = INTERVENED
    return [
        (_MARK_RUN, (bits, run_id, tenant, bits, bits)),
        (_MARK_AGENTS, (bits, tenant, run_id, bits, bits)),
    ]


def forget_signals(tenant: str, run_id: str) -> list[Statement]:
    """Statements that delete what a run's annotations said of it."""
    return [(sql, (tenant, run_id)) for sql in _FORGET]


def of_runs(tenant: str, run_ids: Sequence[str]) -> Asking[dict[str, FeedbackCount]]:
    """Read what was said of each run."""
    [answers] = yield [Question(_OF_RUN, [(tenant, run_id) for run_id in run_ids])]
    return {
        row[0]: FeedbackCount(
            ratings=row[1], rating_sum=row[2], corrections=row[3], labels=row[4], flags=row[5]
        )
        for rows in answers
        for row in rows
    }


def counting_signals(
    dialect: Dialect, tenant: str, where: FeedbackFilter, by: GroupBy
) -> tuple[str, list[Parameter]]:
    """The statement and its parameters that count the runs of a window by their signals."""
    parts: list[str] = []
    parameters: list[Parameter] = []
    for unit, since, until in stretches(where, by):
        sql, values = _part(dialect, f"run_{unit}", tenant, where, by)
        parts.append(sql)
        parameters += [*values, since, until]
    names = _GROUPS[by]
    sql = f"SELECT {', '.join((*names, _SUMS))} FROM ({' UNION ALL '.join(parts)}) part"
    return (f"{sql} GROUP BY {', '.join(names)}" if names else sql), parameters


def _part(
    dialect: Dialect, table: str, tenant: str, where: FeedbackFilter, by: GroupBy
) -> tuple[str, list[Parameter]]:
    mark = dialect.mark
    bucket = (
        f"bucket / {where.bucket_ms} * {where.bucket_ms} AS bucket" if by == "time" else "bucket"
    )
    conditions = [f"tenant = {mark}"]
    values: list[Parameter] = [tenant]
    if where.agent_id is not None:
        conditions.append(f"agent_id = {mark}")
        values.append(where.agent_id)
    else:
        # The row without an agent counts every run once.
        conditions.append("agent_id <> ''" if by == "agent" else "agent_id = ''")
    if where.workflow_id is not None:
        conditions.append(f"workflow_id = {mark}")
        values.append(where.workflow_id)
    conditions += [f"{table}.bucket >= {mark}", f"{table}.bucket < {mark}"]
    columns = f"{bucket}, workflow_id, agent_id, signals, runs"
    return f"SELECT {columns} FROM {table} WHERE {' AND '.join(conditions)}", values


def signal_counts(rows: list[Row], by: GroupBy) -> list[SignalCount]:
    """Name the columns of `counting_signals`; a group without runs is left out."""
    names = (*_GROUPS[by], "runs", "flagged", "corrected", "intervened")
    return [
        SignalCount(**dict(zip(names, row, strict=True))) for row in rows if row[len(_GROUPS[by])]
    ]
