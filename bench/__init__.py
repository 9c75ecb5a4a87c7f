"""Benchmarks: every figure beside a floor that was measured in the same run."""

from __future__ import annotations
