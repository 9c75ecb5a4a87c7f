"""The fleet's own rules, for whoever shows it."""

from __future__ import annotations

from wopr.fleet.demo import is_demo
from wopr.fleet.observed_ids import is_observed_run, require_own
from wopr.fleet.statistics import convergence_bucket
from wopr.fleet.windows import start_of

__all__ = [
    "convergence_bucket",
    "is_demo",
    "is_observed_run",
    "require_own",
    "start_of",
]
