"""A nightly audit fleet: agents outside the host that report with KAHN lines.

    python examples/audit_fleet.py audits.ndjson
    wopr fleet check audits.ndjson

Each auditor checks one repository and appends its steps to a log file. The emitter is one file
without dependencies, so any agent can copy it and report in the same way. An agent converges when
it reaches its goal; here, when all its checks pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from wopr.kahn.emitters.kahn_agent_emit import (
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
    """An agent of the fleet, the files of its repository, and its checks by name."""

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
        "auditor:support",
        {"settings.toml": "debug = true"},
        {
            "policy:licence": lambda files: "LICENSE" in files,
            "security:debug": lambda files: "debug = true" not in files["settings.toml"],
        },
    ),
)


def audit(log: AgentEmitter, auditor: Auditor, night: str = NIGHT) -> int:
    """Run one auditor, log every step, and return the number of failed checks."""
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
        _run_check(log, run_id, auditor, name, check) for name, check in auditor.checks.items()
    )
    statuses = [
        "tool_call",
        "tool_result",
        "response",
        "reflect",
        *([] if failed else ["converged"]),
    ]
    for before, after in pairwise(statuses):
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


def _run_check(log: AgentEmitter, run_id: str, auditor: Auditor, name: str, check: Check) -> bool:
    """Run one check and log its result. Return whether the check failed."""
    has_passed = check(auditor.files)
    result = AuditResult.PASS if has_passed else AuditResult.FAIL
    log.emit(audit_checkpoint(run_id, auditor.agent_id, name, result, 0.01))
    return not has_passed


def main(path: Path) -> int:
    """Run the whole fleet and return the number of failed checks."""
    with AgentEmitter(path) as log:
        return sum(audit(log, auditor) for auditor in FLEET)


if __name__ == "__main__":
    [target] = sys.argv[1:] or ["audits.ndjson"]
    print(f"{main(Path(target))} failed checks; validate the log with `wopr fleet check {target}`")
