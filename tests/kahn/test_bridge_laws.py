from __future__ import annotations

import os
import time
from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kahn.laws import hold_laws
from tests.kahn.random_logs import random_log
from tests.support.kahn_lines import read
from wopr.kahn.events import AgentRunEnd, event_name

LOGS = int(os.environ.get("WOPR_FLEET_LOGS", "0"))
LENGTHS = (6, 12, 18, 30)
SECONDS = float(os.environ.get("WOPR_FLEET_SECONDS", "1200"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_the_bridge_laws_hold_for_every_log_and_every_prefix(chance: Random) -> None:
    hold_laws(random_log(chance))


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_the_bridge_laws_hold_for_logs_with_invalid_events(chance: Random) -> None:
    hold_laws(random_log(chance, junk=0.6, most=15))


def test_the_generated_logs_reach_every_variant_and_every_outcome() -> None:
    seen: set[str] = set()

    for seed in range(300):
        for line in read(hold_laws(random_log(Random(seed)))):
            seen.add(event_name(line.event))
            if isinstance(line.event, AgentRunEnd):
                seen.add(line.event.outcome)

    assert seen == {
        *("agent_run_start", "agent_transition", "tool_invocation", "audit_checkpoint"),
        *("agent_run_end", "converged", "partial", "escaped", "aborted"),
    }


@pytest.mark.skipif(not LOGS, reason="WOPR_FLEET_LOGS says how many logs to try")
@pytest.mark.timeout(0)
def test_the_bridge_laws_hold_for_any_requested_number_of_logs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    deadline = time.monotonic() + SECONDS
    outcomes: Counter[str] = Counter()
    tried = events = lines = 0

    while tried < LOGS and time.monotonic() < deadline:
        log = random_log(
            Random(f"bulk-{tried}"), junk=(0.0, 0.05, 0.4)[tried % 3], most=LENGTHS[tried % 4]
        )
        written = hold_laws(log)
        tried, events, lines = tried + 1, events + len(log.events), lines + len(written)
        for line in read(written):
            if isinstance(line.event, AgentRunEnd):
                outcomes[line.event.outcome] += 1

    with capsys.disabled():
        print(f"\n{tried} logs, {events} events, {lines} lines, outcomes {dict(outcomes)}")
    assert tried
