"""Commands that wait for a run's own writer: they lie beside the run until it carries them out."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from wopr.engine.state import RunState
from wopr.protocol.documents import Document


class PauseWish(Document, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """Pause once the nodes in flight have ended.

    `since` is how long the log was for who asked.
    """

    reason: str = ""
    since: int = 0

    def is_settled(self, state: RunState) -> bool:
        """Whether the run was paused since, or resumed: by this wish or by another command.

        Processes may hear of a wish late. One that was left before a resume ends with it.
        """
        return state.last_steered >= self.since


class CancelWish(Document, frozen=True, kw_only=True, tag_field="kind", tag="cancel"):
    """Cancel, because the parent was."""

    reason: str
    parent_run_id: str = ""


RunWish: TypeAlias = PauseWish | CancelWish


def read_wish(body: bytes | None) -> RunWish | None:
    """Decode what lies beside a run."""
    return None if body is None else msgspec.json.decode(body, type=RunWish)
