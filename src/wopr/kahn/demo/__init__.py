"""Demo data for the fleet views."""

from __future__ import annotations
