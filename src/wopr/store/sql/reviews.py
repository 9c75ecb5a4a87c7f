"""When a reviewer may finish a run of a queue, whichever adapter asks."""

from __future__ import annotations

from wopr.protocol.errors import Conflict, NotFound
from wopr.store.port.feedback import Review
from wopr.store.sql.dialect import Row


def is_held(review: Review, item: Row | None, hold: Row | None) -> bool:
    """Whether the reviewer's hold still stands; one that ran out may go on if there is room.

    `item` begins with the overlap and the reviews of the queue's run, `hold` is when the
    reviewer's hold ends and when they finished. Raises `NotFound` or `Conflict` where they may
    not finish at all.
    """
    if item is None:
        raise NotFound(f"there is no run {review.run_id!r} in this queue")
    if hold is None:
        raise _conflict("take the run with items:next before you finish it")
    locked_until, done_at = hold
    if done_at is not None:
        raise _conflict("you have reviewed this run already")
    return bool(locked_until > review.at)


def require_room(overlap: int, reviews: int, others: int) -> None:
    """Raise `Conflict` when those who are done and those who hold the run leave no room."""
    if reviews + others >= overlap:
        raise _conflict("the lock ran out, and others review this run now")


def _conflict(message: str) -> Conflict:
    return Conflict(message, code="review_conflict")
