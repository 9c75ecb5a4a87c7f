"""Facilities of one process that every layer may use: settings, clock and ids, outgoing HTTP, subprocesses, metrics."""

from __future__ import annotations
