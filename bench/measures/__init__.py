"""The measures by their `--only` name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from bench.figures import Figure, Floors, Size
from bench.measures.agent_events import measure_agent_events
from bench.measures.appends import measure_appends
from bench.measures.console import measure_console
from bench.measures.exports import measure_exports
from bench.measures.fairness import measure_fairness
from bench.measures.fan_out import measure_fan_out
from bench.measures.feedback import measure_feedback
from bench.measures.fleet import measure_fleet
from bench.measures.forks import measure_forks
from bench.measures.growth import measure_growth
from bench.measures.postgres import measure_postgres
from bench.measures.reads import measure_reads
from bench.measures.runs import measure_runs
from bench.measures.timers import measure_timers
from bench.measures.waiting import measure_waiting
from bench.measures.watching import measure_watching

Measure: TypeAlias = Callable[[Size, Floors], list[Figure]]

MEASURES: Mapping[str, Measure] = {
    "runs": measure_runs,
    "appends": measure_appends,
    "agent-events": measure_agent_events,
    "reads": measure_reads,
    "fan-out": measure_fan_out,
    "growth": measure_growth,
    "waiting": measure_waiting,
    "fleet": measure_fleet,
    "exports": measure_exports,
    "feedback": measure_feedback,
    "forks": measure_forks,
    "console": measure_console,
    "watching": measure_watching,
    "postgres": measure_postgres,
    "timers": measure_timers,
    "fairness": measure_fairness,
}
