"""The shell around the engine: commands, the advance loop, timers, children, recovery."""

from __future__ import annotations
