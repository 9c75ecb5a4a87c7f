"""From pushed lines to what is new of their runs: aligned with what is held, folded, or refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from wopr.fleet.align import WouldRewrite, align_packed, line_hash
from wopr.fleet.events import CI_EVENTS, AgentRunEnd, AgentRunStart, KahnEvent, variant
from wopr.fleet.lines import split_lines
from wopr.fleet.reading import BadLine, read_event
from wopr.fleet.run_fold import Arrival, RunFold
from wopr.protocol.errors import Conflict, Gone, Refused
from wopr.store.port.fleet import HASH_BYTES, FleetRun, Growth, HeldRun, Source

Family: TypeAlias = Literal["any", "agent"]

_SECRET_NAME: Final = (
    "run_id: expected an id without credentials; this one looks like an API key or a token"
)
_EXPIRED: Final = "the run is past its retention and takes no more lines"


class LineFault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one line of a push, counted from 1."""

    line: int
    message: str


@dataclass(slots=True)
class PushedRun:
    """The lines of a run in a push: where they stand, without their newlines, and their events.

    `once` are the lines that start or end an agent: one that is repeated is a duplicate.
    """

    numbers: list[int] = field(default_factory=list[int])
    lines: list[bytes] = field(default_factory=list[bytes])
    events: list[KahnEvent] = field(default_factory=list[KahnEvent])
    once: set[bytes] = field(default_factory=set[bytes])


@dataclass(slots=True)
class Push:
    """The lines of a push by run, each in their order, and those that are no events.

    `repeated` is the number of lines that start or end an agent a second time, byte for byte.
    """

    runs: dict[str, PushedRun] = field(default_factory=dict[str, PushedRun])
    faults: list[LineFault] = field(default_factory=list[LineFault])
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class Aligned:
    """A push after it was compared with what is held; `duplicates` are lines that were there."""

    growths: tuple[Growth, ...]
    accepted: int
    duplicates: int


def read_body(body: bytes, family: Family = "any") -> Push:
    """Read the lines of a body."""
    return read_lines(split_lines(body), family)


def read_lines(numbered: Iterable[tuple[int, bytes]], family: Family = "any") -> Push:
    """Read numbered lines."""
    push = Push()
    for number, raw in numbered:
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
        raise BadLine(f"{variant(event)} is of the CI family; here only the agent family is taken")


def align_push(
    push: Push,
    held: Mapping[str, HeldRun],
    arrival: Arrival,
    own: Collection[str] = (),
) -> Aligned:
    """Compare a push with what is held of its runs, and fold what is new.

    Of runs in `own`, which are the host's, only the host adds lines. A producer's new run is refused
    when its id holds a secret, because the id becomes part of the observed run's id. Raises
    `Refused` that names every bad line, `Conflict` that names the lines that would rewrite history,
    and `Gone` for news of a run past its retention.
    """
    faults = list(push.faults)
    clashes: list[LineFault] = []
    growths: list[Growth] = []
    accepted = 0
    for run_id, run in push.runs.items():
        found = held.get(run_id)
        if found is None and arrival.source == "push" and arrival.redact(run_id) != run_id:
            faults.append(LineFault(line=run.numbers[0], message=_SECRET_NAME))
            continue
        try:
            if found is None and run_id in own:
                raise WouldRewrite(tuple(range(len(run.lines))))
            growth = _grow(run_id, run, found, arrival, faults)
        except WouldRewrite as clash:
            clashes += _clashes(run_id, run, clash)
            continue
        if growth is not None:
            growths.append(growth)
            accepted += growth.new_lines
    _require_sound(faults, clashes)
    pushed = push.repeated + sum(len(run.lines) for run in push.runs.values())
    return Aligned(tuple(growths), accepted, pushed - accepted)


def _require_sound(faults: list[LineFault], clashes: list[LineFault]) -> None:
    if faults:
        faults.sort(key=lambda fault: fault.line)
        raise Refused(
            f"line {faults[0].line}: {faults[0].message}; nothing was stored",
            field="body",
            errors=faults,
        )
    if clashes:
        clashes.sort(key=lambda fault: fault.line)
        raise Conflict(
            f"line {clashes[0].line}: {clashes[0].message}; nothing was stored",
            code="would_rewrite",
            errors=clashes,
        )


def _clashes(run_id: str, run: PushedRun, clash: WouldRewrite) -> Iterator[LineFault]:
    message = f"this line disagrees with those held of run {run_id}"
    for place in clash.lines:
        yield LineFault(line=run.numbers[place], message=clash.messages.get(place, message))


def _grow(
    run_id: str,
    run: PushedRun,
    held: HeldRun | None,
    arrival: Arrival,
    faults: list[LineFault],
) -> Growth | None:
    """What is new of one run; None when all of it is held, or something is wrong with it."""
    hashes = [line_hash(line)[:HASH_BYTES] for line in run.lines]
    known = 0 if held is None else align_packed(held.hashes, hashes)
    if known == len(hashes):
        return None
    if held is not None:
        _require_open(held.run, arrival.source, range(known, len(hashes)))
    before = None if held is None else held.run
    fold = RunFold(run_id, arrival, before, None if held is None else held.agents)
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
    return Growth(
        run=fold.run,
        before=before,
        body=b"\n".join([*run.lines[known:], b""]),
        hashes=b"".join(hashes[known:]),
        agents=fold.agents,
        audits=tuple(fold.audits),
    )


def _require_open(run: FleetRun, source: Source, news: Iterable[int]) -> None:
    """Refuse news of a run that has expired, or that is told by somebody else."""
    if run.hidden_at is not None:
        raise Gone(_EXPIRED, runId=run.run_id)
    if run.source != source:
        raise WouldRewrite(tuple(news))
