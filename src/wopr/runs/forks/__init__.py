"""Forks, replays and comparisons of runs."""

from __future__ import annotations
