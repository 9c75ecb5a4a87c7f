"""Node types, one file each, and the registry that finds them."""

from __future__ import annotations
