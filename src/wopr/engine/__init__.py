"""The pure engine: state, `fold` and `plan`. No clock, no randomness, no I/O."""

from __future__ import annotations
