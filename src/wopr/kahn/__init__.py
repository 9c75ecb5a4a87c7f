"""KAHN: event lines of agent fleets, their checker, the bridge to run logs, and statistics.

A KAHN line is one event as a JSON object. There are two families of events: an agent works on a
task, or a CI run executes a graph of nodes. Section numbers in this folder are those of the KAHN
document.

- Producer: a process that writes or pushes lines. The fleet: all KAHN runs of a tenant.
- Status: the current state of an agent, such as `thinking`, `tool_call` or `reflect`.
- Outcome: how an agent's run ended. `converged`: it reached a confident or verified result.
  `partial`: it ended without such a result. `escaped`: it ended, but left its scope, for example by
  a forbidden tool call. `aborted`: it failed or was stopped from outside.
- Convergence score: how far a run converged, from 0 to 1; 1 if it converged.
- Checkpoint: a named check of an agent's work. An audit is one result of a checkpoint: pass, fail or
  warn.
- Flakiness of a checkpoint: 0 if its audits always agree, 1 if half of them pass.
- Regression: the last ended run of an agent did not converge, and the run before it did.
- Severity: a number that orders agents by urgency; a regression outweighs all failures.
- Observed run: a read-only run of this host, built from pushed lines.
"""

from __future__ import annotations
