"""Benchmarks. Each figure is compared with a floor, a lower bound measured in the same run."""

from __future__ import annotations
