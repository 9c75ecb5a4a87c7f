"""As `rows`, for what lies beside the runs: annotations, reviews, webhooks and the audit log."""

from __future__ import annotations

import msgspec

from wopr.store.port.audit import AuditRow, CheckpointRow
from wopr.store.port.feedback import DAY_MS, HOUR_MS, AnnotationRow, JudgedRow, JudgeRow, QueueRow
from wopr.store.port.webhooks import DeadLetter, Health, Settlement, WebhookRow
from wopr.store.sql.dialect import Parameter, Row
from wopr.store.sql.rows import encoded, texts

_times = msgspec.json.Decoder(tuple[int, ...])

ANNOTATION_COLUMNS = (
    "annotation_id, run_id, workflow_id, agent_id, node_id, kind, rating, created_at, body, source"
)


def annotation_row(row: Row) -> AnnotationRow:
    """Name the columns of `ANNOTATION_COLUMNS`."""
    return AnnotationRow(
        annotation_id=row[0],
        run_id=row[1],
        workflow_id=row[2],
        agent_id=row[3],
        node_id=row[4],
        kind=row[5],
        rating=row[6],
        created_at=row[7],
        body=row[8],
        source=row[9],
    )


def annotation_values(tenant: str, row: AnnotationRow) -> tuple[Parameter, ...]:
    """The tenant, and the values of `ANNOTATION_COLUMNS`."""
    return (
        tenant,
        row.annotation_id,
        row.run_id,
        row.workflow_id,
        row.agent_id,
        row.node_id,
        row.kind,
        row.rating,
        row.created_at,
        row.body,
        row.source,
    )


def counted_numbers(row: AnnotationRow, by: int) -> tuple[int, int, int, int, int]:
    """What an annotation adds to its counts: ratings, their sum, corrections, labels, flags."""
    return (
        by * (row.kind == "rating"),
        by * (row.rating or 0),
        by * (row.kind == "correction"),
        by * (row.kind == "label"),
        by * (row.kind == "flag"),
    )


def counted_keys(tenant: str, row: AnnotationRow) -> list[tuple[str, int, str, str, str]]:
    """The keys of the hour and of the day that an annotation is counted in."""
    return [
        (
            tenant,
            row.created_at - row.created_at % unit,
            row.workflow_id,
            row.agent_id,
            row.node_id,
        )
        for unit in (HOUR_MS, DAY_MS)
    ]


QUEUE_COLUMNS = "queue_id, created_at, overlap, body"


def queue_row(row: Row) -> QueueRow:
    """Name the columns of `QUEUE_COLUMNS`."""
    return QueueRow(queue_id=row[0], created_at=row[1], overlap=row[2], body=row[3])


JUDGE_COLUMNS = "judge_id, created_at, is_done, body"


def judge_row(row: Row) -> JudgeRow:
    """Name the columns of `JUDGE_COLUMNS`."""
    return JudgeRow(judge_id=row[0], created_at=row[1], is_done=bool(row[2]), body=row[3])


JUDGED_COLUMNS = "place, run_id, state, judge_run_id, annotation_id, reason"


def judged_row(row: Row) -> JudgedRow:
    """Name the columns of `JUDGED_COLUMNS`."""
    return JudgedRow(
        place=row[0],
        run_id=row[1],
        state=row[2],
        judge_run_id=row[3],
        annotation_id=row[4],
        reason=row[5],
    )


WEBHOOK_COLUMNS = """
webhook_id, url, events, tags, secret, fingerprint, created_at, state, failures, recent,
open_until, old_secret, old_secret_until
"""


def webhook_row(row: Row) -> WebhookRow:
    """Name the columns of `WEBHOOK_COLUMNS`."""
    return WebhookRow(
        webhook_id=row[0],
        url=row[1],
        events=texts(row[2]),
        tags=texts(row[3]),
        secret=row[4],
        fingerprint=row[5],
        created_at=row[6],
        health=Health(
            state=row[7],
            failures=row[8],
            recent=() if row[9] is None else _times.decode(row[9]),
            open_until=row[10],
        ),
        old_secret=row[11],
        old_secret_until=row[12],
    )


def webhook_values(tenant: str, row: WebhookRow) -> tuple[Parameter, ...]:
    """The values of a new subscription: the id, the tenant, then all up to its creation."""
    return (
        row.webhook_id,
        tenant,
        row.url,
        msgspec.json.encode(row.events),
        encoded(row.tags),
        row.secret,
        row.fingerprint,
        row.created_at,
    )


def health_values(health: Health) -> tuple[Parameter, ...]:
    """State, failures, recent failures and the end of the pause."""
    recent = msgspec.json.encode(health.recent) if health.recent else None
    return (health.state, health.failures, recent, health.open_until)


def letter_row(row: Row) -> DeadLetter:
    """Name run, sequence, type, attempts, reason and time of a dead letter."""
    return DeadLetter(
        run_id=row[0], sequence=row[1], type=row[2], attempts=row[3], reason=row[4], died_at=row[5]
    )


def letter_values(tenant: str, webhook_id: str, letter: DeadLetter) -> tuple[Parameter, ...]:
    """The values of a dead letter: run, webhook, sequence, tenant, the rest, and its place."""
    return (
        letter.run_id,
        webhook_id,
        letter.sequence,
        tenant,
        letter.type,
        letter.attempts,
        letter.reason,
        letter.died_at,
        f"{letter.run_id}:{letter.sequence:020d}",
    )


def taken_off(settlement: Settlement) -> list[int]:
    """The sequences that leave a lane: those that were delivered, and the one given up."""
    gone = [*settlement.delivered]
    if settlement.dead is not None:
        gone.append(settlement.dead.sequence)
    return gone


ENTRY_COLUMNS = "sequence, tenant, body, digest"


def entry_row(row: Row) -> AuditRow:
    """Name the columns of `ENTRY_COLUMNS`."""
    return AuditRow(sequence=row[0], tenant=row[1], body=row[2], digest=row[3])


CHECKPOINT_COLUMNS = "at_sequence, merkle_root, signature, public_key, peaks"


def checkpoint_row(row: Row) -> CheckpointRow:
    """Name the columns of `CHECKPOINT_COLUMNS`."""
    return CheckpointRow(
        at_sequence=row[0], merkle_root=row[1], signature=row[2], public_key=row[3], peaks=row[4]
    )


def checkpoint_values(row: CheckpointRow) -> tuple[Parameter, ...]:
    """The values of `CHECKPOINT_COLUMNS`."""
    return (row.at_sequence, row.merkle_root, row.signature, row.public_key, row.peaks)
