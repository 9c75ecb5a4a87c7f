"""Runs: create, advance, append, command, read and fork them. The engine computes their state."""

from __future__ import annotations
