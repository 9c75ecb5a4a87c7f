"""The audit log: entries, checkpoints, sinks and verification."""

from __future__ import annotations
