"""`fold`: applies the events of a run's log to its state."""

from __future__ import annotations
