"""Node types and their registry."""

from __future__ import annotations
