"""Interrupts: suspend a run, list pending interrupts, check a resume value and resume."""

from __future__ import annotations
