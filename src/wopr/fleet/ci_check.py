"""What the checker remembers of one CI run: its order, and attempts that are still open."""

from __future__ import annotations

from collections.abc import Iterator

from wopr.fleet.events import CiEvent, NodeAttempt, NodeTransition, RunEnd, RunStart
from wopr.fleet.findings import Finding, finding
from wopr.protocol.documents import Unset


class CiCheck:
    """Checks the lines of one CI run in their order."""

    def __init__(self) -> None:
        self._is_begun = False
        self._is_ended = False
        # Attempts that have one of their two lines, so far without the other.
        self._running: dict[tuple[str, int], int] = {}
        self._attempted: set[tuple[str, int]] = set()

    def check(self, number: int, event: CiEvent) -> Iterator[Finding]:
        """Check the next line of the run."""
        yield from self._order(number, event)
        match event:
            case NodeTransition(to="running"):
                if not isinstance(event.attempt, Unset):
                    self._begin((event.node_id, event.attempt), number)
            case NodeAttempt():
                self._finish((event.node_id, event.attempt))
            case RunEnd():
                self._is_ended = True
                yield from self._unpaired()
            case _:
                return

    def _order(self, number: int, event: CiEvent) -> Iterator[Finding]:
        if not self._is_begun and not isinstance(event, RunStart):
            yield finding(number, "ci_order", "the first line of the run is not run_start")
        if self._is_ended:
            yield finding(number, "ci_order", "a line after run_end")
        self._is_begun = True

    def _begin(self, attempt: tuple[str, int], number: int) -> None:
        if attempt in self._attempted:
            self._attempted.remove(attempt)
        else:
            self._running[attempt] = number

    def _finish(self, attempt: tuple[str, int]) -> None:
        if self._running.pop(attempt, None) is None:
            self._attempted.add(attempt)

    def _unpaired(self) -> Iterator[Finding]:
        for (node_id, attempt), number in self._running.items():
            message = f"{node_id} began attempt {attempt}, and no node_attempt tells how it ended"
            yield finding(number, "attempt_pairing", message)
        self._running.clear()
