"""A nightly audit fleet with KAHN: agents that run elsewhere, observed line by line.

    python examples/audit_fleet.py audits.ndjson
    wopr fleet check audits.ndjson

Each auditor checks one repository and writes what it does to a log that only grows. The emitter is
one file without dependencies, so an agent on any machine can copy it and report in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from wopr.fleet.emitters.kahn_agent_emit import (
    AgentEmitter,
    AgentOutcome,
    AuditResult,
    agent_run_end,
    agent_run_start,
    agent_transition,
    audit_checkpoint,
    tool_invocation,
)

Check = Callable[[Mapping[str, str]], bool]
NIGHT = "audit-2026-01-01"


@dataclass(frozen=True)
class Auditor:
    """An agent of the fleet: what it looks at, and what must hold there."""

    agent_id: str
    files: Mapping[str, str]
    checks: Mapping[str, Check]


FLEET = (
    Auditor(
        "auditor:shop",
        {"LICENSE": "Apache-2.0", "settings.toml": "debug = false"},
        {
            "policy:licence": lambda files: "LICENSE" in files,
            "security:debug": lambda files: "debug = true" not in files["settings.toml"],
        },
    ),
    Auditor(
        "auditor:desk",
        {"settings.toml": "debug = true"},
        {
            "policy:licence": lambda files: "LICENSE" in files,
            "security:debug": lambda files: "debug = true" not in files["settings.toml"],
        },
    ),
)


def audit(log: AgentEmitter, auditor: Auditor, night: str = NIGHT) -> int:
    """Let one auditor work and write down every step; the answer is how many checks failed."""
    run_id = f"{night}-{auditor.agent_id.partition(':')[2]}"
    log.emit(agent_run_start(run_id, auditor.agent_id, "Audit the repository"))
    step = 1
    log.emit(agent_transition(run_id, auditor.agent_id, step, "thinking", "tool_call"))
    log.emit(
        tool_invocation(
            run_id,
            auditor.agent_id,
            step,
            "read_files",
            0.1,
            True,
            output_summary=", ".join(sorted(auditor.files)),
        )
    )
    failed = sum(
        _checked(log, run_id, auditor, name, check) for name, check in auditor.checks.items()
    )
    way = ["tool_call", "tool_result", "response", "reflect", *([] if failed else ["converged"])]
    for before, after in pairwise(way):
        log.emit(agent_transition(run_id, auditor.agent_id, step, before, after))
    log.emit(
        agent_run_end(
            run_id,
            auditor.agent_id,
            AgentOutcome.CONVERGED if not failed else AgentOutcome.PARTIAL,
            step,
            1,
            len(auditor.checks),
            len(auditor.checks) - failed,
            failed,
            1.0,
        )
    )
    return failed


def _checked(log: AgentEmitter, run_id: str, auditor: Auditor, name: str, check: Check) -> bool:
    is_fine = check(auditor.files)
    result = AuditResult.PASS if is_fine else AuditResult.FAIL
    log.emit(audit_checkpoint(run_id, auditor.agent_id, name, result, 0.01))
    return not is_fine


def main(path: Path) -> int:
    """Run the whole fleet, and count what it found."""
    with AgentEmitter(path) as log:
        return sum(audit(log, auditor) for auditor in FLEET)


if __name__ == "__main__":
    [target] = sys.argv[1:] or ["audits.ndjson"]
    print(f"{main(Path(target))} findings; look with `wopr fleet check {target}`")
