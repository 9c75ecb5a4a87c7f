"""Orchestration: a supervisor decides and a dispatch node executes its decisions."""

from __future__ import annotations
