"""From pushed lines to what is new of their runs: aligned with what is held, folded, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from wopr.fleet.align import WouldRewrite, align_packed, line_hash
from wopr.fleet.events import CI_EVENTS, variant
from wopr.fleet.lines import split_lines
from wopr.fleet.reading import BadLine, KahnLine, read_line
from wopr.fleet.run_fold import RunFold
from wopr.protocol.errors import Conflict, Gone, Refused
from wopr.store.port.fleet import HASH_BYTES, Growth, HeldRun, Source

Family: TypeAlias = Literal["any", "agent"]

_EXPIRED: Final = "the run is past its retention and takes no more lines"


class LineFault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one line of a push, counted from 1."""

    line: int
    message: str


class Numbered(NamedTuple):
    """A line and where it stands in its push."""

    number: int
    line: KahnLine


@dataclass(slots=True)
class Push:
    """The lines of a push by run, each in their order, and those that are no events."""

    runs: dict[str, list[Numbered]] = field(default_factory=dict[str, list[Numbered]])
    faults: list[LineFault] = field(default_factory=list[LineFault])


class GrownRun(NamedTuple):
    """What is new of one run, and those lines."""

    growth: Growth
    lines: Sequence[KahnLine]


@dataclass(frozen=True, slots=True)
class Aligned:
    """A push after it was compared with what is held; `duplicates` are lines that were there."""

    grown: tuple[GrownRun, ...]
    duplicates: int


def read_body(body: bytes, family: Family = "any") -> Push:
    """Read the lines of a body."""
    return read_lines(split_lines(body), family)


def read_lines(numbered: Iterable[tuple[int, bytes]], family: Family = "any") -> Push:
    """Read numbered lines."""
    push = Push()
    for number, raw in numbered:
        try:
            line = read_line(raw)
            _require_family(line, family)
        except BadLine as fault:
            push.faults.append(LineFault(line=number, message=fault.message))
        else:
            push.runs.setdefault(line.event.run_id, []).append(Numbered(number, line))
    return push


def _require_family(line: KahnLine, family: Family) -> None:
    if family == "agent" and isinstance(line.event, CI_EVENTS):
        raise BadLine(
            f"{variant(line.event)} is of the CI family; here only the agent family is taken"
        )


def align_push(push: Push, held: Mapping[str, HeldRun], source: Source) -> Aligned:
    """Compare a push with what is held of its runs, and fold what is new.

    Raises `Refused` that names every bad line, `Conflict` that names the lines that would rewrite
    history, and `Gone` for news of a run past its retention.
    """
    faults = list(push.faults)
    clashes: list[LineFault] = []
    grown: list[GrownRun] = []
    duplicates = 0
    for run_id, lines in push.runs.items():
        try:
            found = _grow(run_id, lines, held.get(run_id), source, faults)
        except WouldRewrite as clash:
            clashes += _clashes(lines, clash)
            continue
        duplicates += len(lines)
        if found is not None:
            grown.append(found)
            duplicates -= len(found.lines)
    _require_sound(faults, clashes)
    return Aligned(tuple(grown), duplicates)


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


def _clashes(lines: Sequence[Numbered], clash: WouldRewrite) -> Iterator[LineFault]:
    for place in clash.lines:
        number, line = lines[place]
        message = f"this line disagrees with those held of run {line.event.run_id}"
        yield LineFault(line=number, message=message)


def _grow(
    run_id: str,
    lines: Sequence[Numbered],
    held: HeldRun | None,
    source: Source,
    faults: list[LineFault],
) -> GrownRun | None:
    """What is new of one run; None when all of it is held."""
    hashes = [line_hash(each.line.raw)[:HASH_BYTES] for each in lines]
    known = 0 if held is None else align_packed(held.hashes, hashes)
    news = lines[known:]
    if not news:
        return None
    _require_open(held, source, known)
    before = None if held is None else held.run
    fold = RunFold(run_id, source, before, None if held is None else held.agents)
    for number, line in news:
        fault = fold.take(line.event)
        if fault is not None:
            faults.append(LineFault(line=number, message=fault))
    if faults:
        return None
    growth = Growth(
        run=fold.run,
        before=before,
        body=b"\n".join([*(each.line.raw for each in news), b""]),
        hashes=b"".join(hashes[known:]),
        agents=fold.agents,
        audits=tuple(fold.audits),
    )
    return GrownRun(growth, [each.line for each in news])


def _require_open(held: HeldRun | None, source: Source, known: int) -> None:
    """Refuse news of a run that has expired, or that is told by somebody else."""
    if held is None:
        return
    if held.run.hidden_at is not None:
        raise Gone(_EXPIRED, runId=held.run.run_id)
    if held.run.source != source:
        raise WouldRewrite((known,))
