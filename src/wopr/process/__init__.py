"""Facilities of one process: settings, clock and ids, outgoing HTTP, subprocesses, metrics."""

from __future__ import annotations
