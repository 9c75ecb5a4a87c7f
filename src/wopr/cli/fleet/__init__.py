"""`wopr fleet`: KAHN logs and the fleet."""

from __future__ import annotations
