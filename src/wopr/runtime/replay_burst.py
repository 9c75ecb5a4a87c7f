"""A burst that follows a record: its clock is the record's, and it notices where it differs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from wopr.engine.history import moved_by
from wopr.engine.replay import CHANGED_PROMPT, Record, asked_key, divergence, is_about
from wopr.engine.state import RunState
from wopr.engine.steps import Step
from wopr.protocol.errors import QuotaExceeded
from wopr.protocol.events import RunEvent
from wopr.protocol.times import to_iso
from wopr.runtime.appender import Burst, DataLimits, Guard
from wopr.runtime.spilling import Spilled
from wopr.runtime.vault import Vault
from wopr.security.redact import Redactor


@dataclass(slots=True)
class Script:
    """A record and how far a replay has come in it."""

    source_run_id: str
    record: Record
    place: int = 0
    has_diverged: bool = False
    # Nodes that were under way where the replay begins: what they still did is repeated.
    midway: frozenset[str] = frozenset()
    # Steps that were planned at once with the last that lie before the beginning.
    planned: list[Step] = field(default_factory=list[Step])
    # What the nodes under way would ask a model first, as keys, until that is compared.
    asked: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    # The source's event ids and the replay's, so that causes stay causes.
    ids: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def next(self) -> RunEvent | None:
        """The event that the record has next."""
        return self.record.at(self.place)


class ReplayBurst(Burst):
    """Events of a replay, each compared with the record as it is appended."""

    # Another attempt reads the record again.
    offloaded_bytes = 1024 * 1024

    def __init__(
        self,
        state: RunState,
        *,
        vault: Vault,
        redactor: Redactor,
        guard: Guard,
        new_id: Callable[[], str],
        script: Script,
        limits: DataLimits,
        log_bytes: int,
        spilled: Spilled,
        refusal: QuotaExceeded | None = None,
    ) -> None:
        # The record's time, not the host's: two replays of a run are alike, whenever they run.
        now = state.updated_at
        super().__init__(
            state,
            vault=vault,
            redactor=redactor,
            guard=guard,
            now=now,
            new_id=new_id,
            limits=limits,
            log_bytes=log_bytes,
            spilled=spilled,
            refusal=refusal,
        )
        self.script = script
        self._is_repeating = False
        self._stands_still = False
        self.look_up_time()

    @contextmanager
    def standing_still(self) -> Generator[None, None, None]:
        """Keep the clock where it is: all nodes that are due are called at one time."""
        self._stands_still = True
        yield
        self._stands_still = False
        self.look_up_time()

    def look_up_time(self) -> None:
        """Set the clock to when the next event of the record came."""
        if self._stands_still:
            return
        if self.script.next is None:
            # Past the record time stands still, but for what waits for it to pass.
            self.go_on_to(max(self.now, self.state.updated_at))
            return
        at = self.script.record.time(self.script.place, 0)
        self.now = at + moved_by(self.state.identity, self.state.next_sequence)
        self.iso = to_iso(at)

    def go_on_to(self, now: int) -> None:
        """Let time pass."""
        self.now = now
        self.iso = to_iso(now - moved_by(self.state.identity, self.state.next_sequence))

    def repeat(self, event: RunEvent) -> None:
        """Append an event of the record as it stands: it is a fact and not worked out again."""
        self._is_repeating = True
        self.copy(event, self.script.ids)
        self._is_repeating = False
        self.script.place += 1
        self.script.planned = [s for s in self.script.planned if not is_about(s, event)]
        self.look_up_time()
        if not self._asks_the_same(event):
            self.diverge(event, "output", point=CHANGED_PROMPT)

    def _asks_the_same(self, event: RunEvent) -> bool:
        """Whether the record's first request of a node is the one that the node would make now."""
        key = asked_key(event)
        wanted = None if key is None else self.script.asked.pop(str(event.node_id), None)
        return wanted is None or key in wanted

    def _append(self, event: RunEvent) -> None:
        """Append, and compare what was worked out with the record."""
        super()._append(event)
        if self._is_repeating or event.type.startswith("replay."):
            return
        expected = self.script.next
        if expected is None:
            cancelled = self.script.record.cancelled_at(self.script.place)
            self.script.place += 1
            if cancelled is not None:
                self.diverge(cancelled, divergence(cancelled, event) or "output")
            return
        self.script.ids[expected.event_id] = event.event_id
        self.script.place += 1
        kind = divergence(expected, event)
        if kind is not None:
            self.diverge(expected, kind)
        if event.type != "node.started":
            # A node is called at the time of its start, whenever the next event came.
            self.look_up_time()

    def diverge(self, expected: RunEvent, kind: str, point: str = "") -> None:
        """Report the first difference; the replay goes on."""
        if self.script.has_diverged:
            return
        self.script.has_diverged = True
        self.add(
            "replay.diverged",
            {
                "sourceRunId": self.script.source_run_id,
                "atSequence": expected.sequence,
                "originalEventId": expected.event_id,
                "divergenceKind": kind,
                **({"divergencePoint": point} if point else {}),
            },
        )
