"""Observed runs: pushed KAHN runs as read-only runs of this host."""

from __future__ import annotations
