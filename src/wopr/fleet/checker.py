"""The lifecycle checker: reads a log line by line and says what is wrong with it (section 4).

It keeps one small record per agent and one per CI run, so a log may be of any length. Nothing it
finds, except a breach of the schema, keeps a line from being read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wopr.fleet.agent_check import AgentCheck
from wopr.fleet.ci_check import CiCheck
from wopr.fleet.events import AuditCheckpoint, NodeAttempt, NodeTransition, RunEnd, RunStart
from wopr.fleet.findings import Finding, finding
from wopr.fleet.lines import numbered
from wopr.fleet.reading import BadLine, KahnLine, condition_faults, decode_line


class Checker:
    """Checks one log. Findings about an earlier line may come with a later one."""

    def __init__(self) -> None:
        self._agents: dict[tuple[str, str], AgentCheck] = {}
        self._ci_runs: dict[str, CiCheck] = {}

    def feed(self, number: int, raw: bytes) -> list[Finding]:
        """Check the next line, given with its number and without its newline."""
        try:
            line = decode_line(raw)
        except BadLine as fault:
            return [finding(number, "schema", fault.message)]
        return list(self._check(number, line))

    def _check(self, number: int, line: KahnLine) -> Iterator[Finding]:
        event = line.event
        for fault in condition_faults(event):
            yield finding(number, "ci_conditional", fault)
        if isinstance(event, RunStart | NodeTransition | NodeAttempt | RunEnd):
            yield from self._ci_runs.setdefault(event.run_id, CiCheck()).check(number, event)
        elif isinstance(event, AuditCheckpoint) and event.agent_id is None:
            return
        else:
            agent = (event.run_id, event.agent_id or "")
            yield from self._agents.setdefault(agent, AgentCheck()).check(number, event)


def check(lines: Iterable[bytes]) -> Iterator[Finding]:
    """Check a whole log; lines may end with a newline, and blank ones are skipped."""
    checker = Checker()
    for number, raw in numbered(lines):
        yield from checker.feed(number, raw)
