"""What every adapter asks of a batch before it writes it, and says when it refuses one."""

from __future__ import annotations

from wopr.protocol.errors import Conflict
from wopr.store.port import Batch
from wopr.store.port.runs import OBSERVED_PREFIX


def check_batch(batch: Batch) -> None:
    """Raise `ValueError` unless the batch's events are numbered as its row and `first` say."""
    after = batch.first + len(batch.events)
    if batch.run.last_sequence != after - 1:
        raise ValueError(f"last_sequence must be {after - 1}, not {batch.run.last_sequence}")
    if [event.sequence for event in batch.events] != list(range(batch.first, after)):
        raise ValueError(f"the batch's events must be numbered from {batch.first} on, without gaps")
    if not after:
        raise ValueError("a run begins with at least one event")
    if any(suspension.run_id != batch.run.run_id for suspension in batch.suspends):
        raise ValueError("a batch suspends its own run only")


def counts_as_active(batch: Batch) -> bool:
    """Whether a batch creates a run that its tenant's active runs include."""
    run = batch.run
    return batch.first == 0 and run.ended_at is None and not run.run_id.startswith(OBSERVED_PREFIX)


def in_flight() -> Conflict:
    """The refusal of a second request under the same idempotency key."""
    return Conflict(
        "another request with this idempotency key came first", code="idempotency_in_flight"
    )
