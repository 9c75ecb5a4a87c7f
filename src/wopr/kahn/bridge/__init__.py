"""The bridge from run logs to KAHN lines."""

from __future__ import annotations
