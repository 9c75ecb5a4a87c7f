"""The new lines of a push: read, aligned with the stored lines (section 8) and folded.

New lines are appended; stored lines are never rewritten. Lines are compared by the hash of their
bytes without the newline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import Final, Literal, TypeAlias

import msgspec

from wopr.kahn.events import CI_EVENTS, AgentRunEnd, AgentRunStart, KahnEvent, event_name
from wopr.kahn.lines import BadLine, read_event, split_lines
from wopr.kahn.run_fold import PushContext, RunFold
from wopr.protocol.errors import Conflict, Gone, Refused
from wopr.store.port.fleet import HASH_BYTES, FleetRun, FleetRunSource, NewLines, StoredFleetRun

# Number of start positions that are compared directly. A log with many equal lines has more.
_MAX_POSITIONS: Final = 16


class WouldRewrite(Exception):
    """A push that contradicts stored lines.

    `lines` are the positions of the contradicting lines in the push, counted from 0. `messages`
    explain some of them.
    """

    def __init__(self, lines: tuple[int, ...], messages: Mapping[int, str] | None = None) -> None:
        super().__init__("the lines contradict stored lines")
        self.lines = lines
        self.messages: Mapping[int, str] = messages or {}


def line_hash(raw: bytes) -> bytes:
    """Return the hash of a line without its newline."""
    return sha256(raw).digest()


class History:
    """The hashes of one run's lines in order, and the first position of each hash."""

    def __init__(self, hashes: Iterable[bytes] = ()) -> None:
        self._hashes: list[bytes] = []
        self._first: dict[bytes, int] = {}
        self.extend(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def extend(self, hashes: Iterable[bytes]) -> None:
        """Add lines at the end."""
        for each in hashes:
            self._first.setdefault(each, len(self._hashes))
            self._hashes.append(each)

    def overlap(self, incoming: Sequence[bytes]) -> int:
        """Return how many of the first incoming lines are stored. The other lines are new.

        This finds the first position from which the stored lines equal the push. Raises
        `WouldRewrite` if there is no such position, but a line of the push is stored.
        """
        place = self._first.get(incoming[0]) if incoming else None
        matched = furthest = 0
        if place is not None:
            borders = _borders(incoming)
            for each in islice(self._hashes, place, None):
                matched = _extend(matched, each, incoming, borders)
                if matched == len(incoming):
                    return matched
                furthest = max(furthest, matched)
        if not matched:
            self._require_all_new(incoming, furthest)
        return matched

    def _require_all_new(self, incoming: Sequence[bytes], furthest: int) -> None:
        """Raise `WouldRewrite` with the new lines before stored lines, if any line is stored."""
        stored = [index for index, each in enumerate(incoming) if each in self._first]
        if stored:
            unknown = {i for i in range(stored[-1]) if incoming[i] not in self._first}
            raise WouldRewrite(tuple(sorted(unknown | {furthest})))


def align(stored: Iterable[bytes], incoming: Sequence[bytes]) -> int:
    """Align two sequences of hashes once; see `History.overlap`."""
    return History(stored).overlap(incoming)


def align_packed(stored: bytes, incoming: Sequence[bytes]) -> int:
    """Align with concatenated hashes of the same length, a multiple of eight.

    The result is that of `align`. In the usual cases, only new lines or only stored lines, the
    stored lines are not compared one by one.
    """
    if not stored or not incoming:
        return 0
    width, packed = len(incoming[0]), b"".join(incoming)
    for place in islice(_positions(stored, incoming[0]), _MAX_POSITIONS):
        shared = min(len(packed), len(stored) - place)
        if stored.startswith(packed[:shared], place):
            return shared // width
    if set(_hash_prefixes(packed, width)).isdisjoint(_hash_prefixes(stored, width)):
        return 0
    return align((stored[at : at + width] for at in range(0, len(stored), width)), incoming)


def _positions(stored: bytes, first: bytes) -> Iterator[int]:
    """Yield the positions where a push could begin."""
    place = stored.find(first)
    while place >= 0:
        if place % len(first) == 0:
            yield place
        place = stored.find(first, place + 1)


def _hash_prefixes(packed: bytes, width: int) -> memoryview[int]:
    """Return the first eight bytes of each hash. Different prefixes belong to different lines."""
    return memoryview(packed).cast("Q")[:: width // 8]


# The Knuth-Morris-Pratt algorithm, so that a log with many equal lines is not searched in quadratic
# time.
def _borders(incoming: Sequence[bytes]) -> list[int]:
    """Return the length of the longest border of each prefix of a push."""
    borders = [0] * len(incoming)
    for index in range(1, len(incoming)):
        borders[index] = _extend(borders[index - 1], incoming[index], incoming, borders)
    return borders


def _extend(matched: int, line: bytes, incoming: Sequence[bytes], borders: Sequence[int]) -> int:
    """Return how many lines of the push match up to and including one more stored line."""
    while matched and incoming[matched] != line:
        matched = borders[matched - 1]
    return matched + (incoming[matched] == line)


Family: TypeAlias = Literal["any", "agent"]

_SECRET_NAME: Final = (
    "run_id: this id looks like an API key or a token; use an id without credentials"
)
_EXPIRED: Final = "the run has expired and accepts no more lines"


class LineFault(msgspec.Struct, frozen=True, kw_only=True):
    """A problem in a line of a push. Line numbers start at 1."""

    line: int
    message: str


@dataclass(slots=True)
class PushedRun:
    """The lines of one run in a push: their numbers, bytes without newlines, and events.

    `once` has the lines that start or end an agent. A repetition of such a line is a duplicate.
    """

    numbers: list[int] = field(default_factory=list[int])
    lines: list[bytes] = field(default_factory=list[bytes])
    events: list[KahnEvent] = field(default_factory=list[KahnEvent])
    once: set[bytes] = field(default_factory=set[bytes])


@dataclass(slots=True)
class Push:
    """The lines of a push by run, and the problems in invalid lines.

    `repeated` is the number of repetitions of lines that start or end an agent.
    """

    runs: dict[str, PushedRun] = field(default_factory=dict[str, PushedRun])
    faults: list[LineFault] = field(default_factory=list[LineFault])
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class AlignedPush:
    """The result of an alignment. `duplicates` is the number of lines that were already stored."""

    new_lines: tuple[NewLines, ...]
    accepted: int
    duplicates: int


def read_body(body: bytes, family: Family = "any") -> Push:
    """Read the lines of a body."""
    return read_lines(split_lines(body), family)


def read_lines(numbered_lines: Iterable[tuple[int, bytes]], family: Family = "any") -> Push:
    """Read numbered lines."""
    push = Push()
    for number, raw in numbered_lines:
        try:
            event = read_event(raw)
            if family == "agent":
                _require_agent_family(event)
        except BadLine as fault:
            push.faults.append(LineFault(line=number, message=fault.message))
            continue
        run = push.runs.get(event.run_id)
        if run is None:
            run = push.runs[event.run_id] = PushedRun()
        if isinstance(event, AgentRunStart | AgentRunEnd):
            if raw in run.once:
                push.repeated += 1
                continue
            run.once.add(raw)
        run.numbers.append(number)
        run.lines.append(raw)
        run.events.append(event)
    return push


def _require_agent_family(event: KahnEvent) -> None:
    if isinstance(event, CI_EVENTS):
        raise BadLine(
            f"{event_name(event)} is an event of the CI family; only the agent family is accepted here"
        )


def align_push(
    push: Push,
    stored: Mapping[str, StoredFleetRun],
    push_context: PushContext,
    own: Collection[str] = (),
) -> AlignedPush:
    """Compare a push with the stored lines of its runs, and fold the new lines.

    `own` has the ids of the host's own runs, to which a producer cannot add lines. A new run of a
    producer is refused if its id looks like a secret, because the id becomes part of the observed
    run's id. Raises `Refused` with every invalid line, `Conflict` with the lines that would rewrite
    stored lines, and `Gone` for new lines of an expired run.
    """
    faults = list(push.faults)
    conflicts: list[LineFault] = []
    new_lines: list[NewLines] = []
    accepted = 0
    for run_id, run in push.runs.items():
        found = stored.get(run_id)
        if (
            found is None
            and push_context.source == "push"
            and push_context.redact(run_id) != run_id
        ):
            faults.append(LineFault(line=run.numbers[0], message=_SECRET_NAME))
            continue
        try:
            if found is None and run_id in own:
                raise WouldRewrite(tuple(range(len(run.lines))))
            added = _align_run(run_id, run, found, push_context, faults)
        except WouldRewrite as conflict:
            conflicts += _conflicts(run_id, run, conflict)
            continue
        if added is not None:
            new_lines.append(added)
            accepted += added.count
    _require_no_faults(faults, conflicts)
    pushed = push.repeated + sum(len(run.lines) for run in push.runs.values())
    return AlignedPush(tuple(new_lines), accepted, pushed - accepted)


def _require_no_faults(faults: list[LineFault], conflicts: list[LineFault]) -> None:
    if faults:
        faults.sort(key=lambda fault: fault.line)
        raise Refused(
            f"line {faults[0].line}: {faults[0].message}; nothing was stored",
            field="body",
            errors=faults,
        )
    if conflicts:
        conflicts.sort(key=lambda fault: fault.line)
        raise Conflict(
            f"line {conflicts[0].line}: {conflicts[0].message}; nothing was stored",
            code="would_rewrite",
            errors=conflicts,
        )


def _conflicts(run_id: str, run: PushedRun, conflict: WouldRewrite) -> Iterator[LineFault]:
    message = f"this line contradicts the stored lines of run {run_id}"
    for place in conflict.lines:
        yield LineFault(line=run.numbers[place], message=conflict.messages.get(place, message))


def _align_run(
    run_id: str,
    run: PushedRun,
    stored: StoredFleetRun | None,
    push_context: PushContext,
    faults: list[LineFault],
) -> NewLines | None:
    """Return the new lines of one run; None if all are stored or a line is not valid."""
    hashes = [line_hash(line)[:HASH_BYTES] for line in run.lines]
    known = 0 if stored is None else align_packed(stored.hashes, hashes)
    if known == len(hashes):
        return None
    if stored is not None:
        _require_open(stored.run, push_context.source, range(known, len(hashes)))
    before = None if stored is None else stored.run
    fold = RunFold(run_id, push_context, before, None if stored is None else stored.agents)
    rewrites: dict[int, str] = {}
    for place in range(known, len(hashes)):
        rewrite = fold.rewrite(run.events[place])
        fault = fold.take(run.events[place]) if rewrite is None else None
        if rewrite is not None:
            rewrites[place] = rewrite
        elif fault is not None:
            faults.append(LineFault(line=run.numbers[place], message=fault))
    if rewrites:
        raise WouldRewrite(tuple(rewrites), rewrites)
    if faults:
        return None
    return NewLines(
        run=fold.run,
        before=before,
        body=b"\n".join([*run.lines[known:], b""]),
        hashes=b"".join(hashes[known:]),
        agents=fold.agents,
        audits=tuple(fold.audits),
    )


def _require_open(run: FleetRun, source: FleetRunSource, positions: Iterable[int]) -> None:
    """Refuse new lines of an expired run, or of a run from another source."""
    if run.hidden_at is not None:
        raise Gone(_EXPIRED, runId=run.run_id)
    if run.source != source:
        raise WouldRewrite(tuple(positions))
